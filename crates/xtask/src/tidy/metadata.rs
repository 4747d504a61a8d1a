//! What crates.io and docs.rs show of a package: every package that is published says it.

/// Keys that `[package]` must have, each with a value or from the workspace.
const REQUIRED: [&str; 5] = ["description", "keywords", "categories", "license", "repository"];
/// The files beside the manifest with the licences, which are the root's. Both licences want it in each copy.
pub const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
/// The most keywords, and the most categories, that crates.io takes.
const MOST: usize = 5;

/// Returns the violations of a manifest. A manifest without a package, or with `publish = false`, has none.
/// Cargo finds a README.md beside the manifest by itself. `lacks` are the files with licences that are not
/// there, or are not the root's.
pub fn check(manifest: &str, has_readme: bool, lacks: &[&str]) -> Vec<String> {
    let keys = package(manifest);
    if keys.is_empty() || value(&keys, "publish") == Some("false") {
        return Vec::new();
    }
    let mut violations = Vec::new();
    if !has_readme && value(&keys, "readme").is_none() {
        violations.push(": is published without a README.md".to_owned());
    }
    violations.extend(lacks.iter().map(|file| format!(": is published without the root's {file}")));
    for key in REQUIRED {
        match value(&keys, key) {
            None => violations.push(format!(": is published without {key}")),
            Some(list) if list.starts_with('[') && list.matches('"').count() / 2 > MOST => {
                violations.push(format!(": has more than {MOST} {key}"));
            }
            Some("[]" | "\"\"") => violations.push(format!(": has an empty {key}")),
            Some(_) => {}
        }
    }
    violations
}

fn value<'a>(keys: &[(&str, &'a str)], key: &str) -> Option<&'a str> {
    keys.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

/// Returns the keys of `[package]` with their values. `key.workspace = true` counts as the key `key`.
fn package(manifest: &str) -> Vec<(&str, &str)> {
    let lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[package]").skip(1);
    let pairs = lines.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.trim().trim_end_matches(".workspace"), value.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "[package]\nname = \"x\"\ndescription = \"a b\"\nkeywords = [\"a\", \"b\"]\n\
        categories = [\"science\"]\nlicense.workspace = true\n\
        repository.workspace = true\n\n[dependencies]\nserde = \"1\"\n";

    #[test]
    fn a_published_package_says_what_it_is() {
        assert_eq!(check(WHOLE, true, &[]), [""; 0]);
        assert_eq!(check(WHOLE, false, &[]), [": is published without a README.md"]);
        let licence = check(WHOLE, true, &LICENCES[1..]);
        assert_eq!(licence, [": is published without the root's LICENSE-MIT"]);
        assert_eq!(check("[package]\npublish = false\n", true, &LICENCES), [""; 0]);
        for key in REQUIRED {
            let without: Vec<&str> = WHOLE.lines().filter(|line| !line.starts_with(key)).collect();
            assert_eq!(check(&without.join("\n"), true, &[]), [format!(": is published without {key}")]);
        }
    }

    #[test]
    fn limits_of_the_registry_are_kept() {
        let many = WHOLE.replace("[\"a\", \"b\"]", "[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"]");
        assert_eq!(check(&many, true, &[]), [": has more than 5 keywords"]);
        assert_eq!(check(&WHOLE.replace("[\"science\"]", "[]"), true, &[]), [": has an empty categories"]);
    }

    #[test]
    fn what_is_not_published_need_not_say_it() {
        assert_eq!(check("[package]\nname = \"x\"\npublish = false\n", false, &[]), [""; 0]);
        assert_eq!(check("[workspace]\nmembers = []\n", false, &[]), [""; 0]);
        assert_eq!(
            check("[package]\nname = \"x\"\n\n[dependencies]\nkeywords = \"1\"\n", true, &[]).len(),
            REQUIRED.len()
        );
    }
}
