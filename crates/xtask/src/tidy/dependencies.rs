//! Who may use whom (docs/ARCHITECTURE.md, "Who may use whom"): shaders, random <- graph <- gpu <- replica <-
//! unisono; cpu <- gpu; graph <- cluster <- replica; cluster <- cluster-mpi <- unisono; random <- data <-
//! unisono; checkpoint <- unisono <- models; random <- models. Nothing else.

/// Each library of this repository, with the libraries of this repository that it may depend on.
const MAY_USE: [(&str, &[&str]); 12] = [
    ("unisono-cpu", &[]),
    ("unisono-shaders", &[]),
    ("unisono-random", &[]),
    ("unisono-checkpoint", &[]),
    ("unisono-data", &["unisono-random"]),
    ("unisono-graph", &["unisono-random", "unisono-shaders"]),
    ("unisono-models", &["unisono", "unisono-random"]),
    ("unisono-gpu", &["unisono-cpu", "unisono-graph", "unisono-random", "unisono-shaders"]),
    ("unisono-cluster", &["unisono-graph"]),
    ("unisono-cluster-mpi", &["unisono-cluster"]),
    (
        "unisono-replica",
        &["unisono-gpu", "unisono-graph", "unisono-random", "unisono-shaders", "unisono-cluster"],
    ),
    (
        "unisono",
        &[
            "unisono-checkpoint",
            "unisono-data",
            "unisono-gpu",
            "unisono-graph",
            "unisono-random",
            "unisono-replica",
            "unisono-shaders",
            "unisono-cluster",
            "unisono-cluster-mpi",
        ],
    ),
];

/// Packages that are not part of the product. They may depend on any package.
const FREE: [&str; 8] = [
    "unisono-testkit",
    "unisono-cases",
    "unisono-examples",
    "unisono-tests",
    "unisono-fuzz",
    "unisono-rdna",
    "xtask",
    "burn-peer",
];
/// The only packages that may depend on wgpu: the library that wraps it, an adapter of it, and packages made
/// of tests.
const WGPU: [&str; 4] = ["unisono-gpu", "unisono-cpu", "unisono-testkit", "unisono-tests"];
/// Libraries that may depend on nothing at all.
const ALONE: [&str; 2] = ["unisono-shaders", "unisono-random"];

struct Dependency {
    name: String,
    dev: bool,
}

/// Returns the violations of a manifest.
pub fn check(manifest: &str) -> Vec<String> {
    let Some(package) = package_name(manifest) else { return Vec::new() };
    let dependencies = dependencies(manifest);
    let mut violations = Vec::new();
    let wgpu = |name: &str| name == "wgpu" || name.starts_with("wgpu-");
    if !WGPU.contains(&package) && dependencies.iter().any(|dependency| wgpu(&dependency.name)) {
        violations.push(": only crates/gpu and crates/cpu may name wgpu".to_owned());
    }
    if FREE.contains(&package) {
        return violations;
    }
    let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == package) else {
        violations.push(format!(
            ": {package} has no place in the order of packages (xtask/src/tidy/dependencies.rs)"
        ));
        return violations;
    };
    for Dependency { name, .. } in dependencies.iter().filter(|dependency| !dependency.dev) {
        let ours = name == "unisono" || name.starts_with("unisono-");
        if ALONE.contains(&package) || ours && !allowed.contains(&name.as_str()) {
            violations.push(format!(": {package} may not use {name}"));
        }
    }
    violations
}

/// Returns the `name` of `[package]`.
fn package_name(manifest: &str) -> Option<&str> {
    let mut lines = manifest.lines().skip_while(|line| line.trim() != "[package]").skip(1);
    let value = lines.find_map(|line| line.trim().strip_prefix("name")?.trim_start().strip_prefix('='))?;
    value.split('"').nth(1)
}

/// Returns the dependencies of a manifest. It reads as much TOML as the manifests of this repository use: a
/// line or a table for each dependency.
fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = Vec::new();
    let mut section = None;
    for line in manifest.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if let Some(header) = line.strip_prefix('[') {
            section = section_of(header.trim_end_matches(']'));
            if let Some((dev, Some(name))) = section {
                found.push(Dependency { name: name.trim_matches('"').to_owned(), dev });
            }
        } else if let (Some((dev, table)), Some((key, value))) = (section, line.split_once('=')) {
            let renamed = if key.trim() == "package" { Some(value) } else { value.split("package =").nth(1) };
            let key = key.split('.').next().unwrap_or_default().trim().trim_matches('"');
            let name = renamed.and_then(|value| value.split('"').nth(1)).unwrap_or(key).to_owned();
            match found.last_mut() {
                Some(last) if table.is_some() => {
                    if renamed.is_some() {
                        last.name = name;
                    }
                }
                _ => found.push(Dependency { name, dev }),
            }
        }
    }
    found
}

/// Reads the header of a table. If the table holds dependencies (`dependencies`, `dependencies.wgpu`,
/// `target.'cfg(unix)'.dev-dependencies`), returns whether they are for tests only, and the name of the
/// dependency if the table is about a single one.
fn section_of(header: &str) -> Option<(bool, Option<&str>)> {
    const KINDS: [(&str, bool); 3] =
        [("dev-dependencies", true), ("build-dependencies", false), ("dependencies", false)];
    KINDS.into_iter().find_map(|(kind, dev)| {
        let start = header.rfind(kind)?;
        if start > 0 && !header[..start].ends_with('.') {
            return None;
        }
        match &header[start + kind.len()..] {
            "" => Some((dev, None)),
            rest => Some((dev, Some(rest.strip_prefix('.')?))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n\n[lints]\nworkspace = true\n\n{rest}")
    }

    #[test]
    fn the_order_of_packages_holds() {
        let fine = "[dependencies]\nunisono-graph.workspace = true\nwgpu.workspace = true\n";
        assert_eq!(check(&manifest("unisono-gpu", fine)), [""; 0]);
        let backwards = check(&manifest("unisono-graph", fine));
        assert_eq!(
            backwards,
            [": only crates/gpu and crates/cpu may name wgpu", ": unisono-graph may not use unisono-graph"]
        );
        assert_eq!(
            check(&manifest("unisono-data", "[dependencies.unisono-graph]\nworkspace = true")),
            [": unisono-data may not use unisono-graph"]
        );
        assert_eq!(check(&manifest("unisono-random", "[dependencies]\nlibm = \"1\"")).len(), 1);
        assert!(check(&manifest("unisono-new", ""))[0].contains("has no place"));
        assert_eq!(check("[workspace.dependencies]\nwgpu = \"30\""), [""; 0]);
    }

    #[test]
    fn dependencies_of_tests_are_free_but_for_wgpu() {
        let dev = "[dev-dependencies]\nunisono.workspace = true\n";
        assert_eq!(check(&manifest("unisono-graph", dev)), [""; 0]);
        let wgpu = "[dev-dependencies]\nwgpu.workspace = true\n";
        assert_eq!(check(&manifest("unisono-graph", wgpu)).len(), 1);
        assert_eq!(check(&manifest("unisono-tests", wgpu)), [""; 0]);
        assert_eq!(check(&manifest("xtask", wgpu)).len(), 1);
    }

    #[test]
    fn every_spelling_of_a_dependency_is_read() {
        for text in [
            "[dependencies]\nwgpu = \"30\"",
            "[dependencies]\nwgpu = { version = \"30\", features = [] } # why",
            "[dependencies]\ng = { package = \"wgpu\", version = \"30\" }",
            "[dependencies.wgpu]\nversion = \"30\"\nfeatures = []",
            "[dependencies.g]\nversion = \"30\"\npackage = \"wgpu\"",
            "[target.'cfg(unix)'.build-dependencies]\n\"wgpu\" = \"30\"",
        ] {
            let names: Vec<String> = dependencies(text).into_iter().map(|d| d.name).collect();
            assert_eq!(names, ["wgpu"], "{text}");
        }
        assert!(dependencies("# wgpu = 1\n[features]\nwgpu = []").is_empty());
    }
}
