//! Modules: the modules at the top of a crate, and which of them may import which.
//!
//! A crate's modules stand in one list, from earlier to later. A module imports only from modules earlier
//! in the list, so there is no circle. The list is here, so that a new import from a later module is
//! noticed when it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;
use syn::{Attribute, Item, UseTree};

/// The modules of each crate that has some, from earlier to later.
const MODULES: [(&str, &[&str]); 10] = [
    (
        "crates/checkpoint",
        &["tensors", "zipped", "torch", "disk", "model", "keras", "store", "saver", "inspect"],
    ),
    ("crates/cpu", &["native", "wide", "compile", "run", "kernels", "options", "backend", "targets"]),
    ("crates/data", &["sample", "transforms", "sources", "compose", "order", "loading"]),
    ("crates/gpu", &["error", "adapter", "cache", "device", "execution"]),
    (
        "crates/graph",
        &["values", "plan", "trace", "ops", "autodiff", "reference", "passes", "fuse", "codegen", "program"],
    ),
    (
        "crates/replica",
        &[
            "batch",
            "known_answer",
            "schedule",
            "sums",
            "observe",
            "error",
            "options",
            "owners",
            "worker",
            "coordinator",
            "class",
        ],
    ),
    (
        "crates/unisono",
        &[
            "error",
            "protobuf",
            "model",
            "objective",
            "optimizers",
            "identity",
            "compile",
            "run",
            "observe",
            "saving",
            "onnx",
            "trainer",
            "callbacks",
            "predictor",
            "renamed",
        ],
    ),
    (
        "crates/models",
        &["error", "config", "architectures", "files", "pretrained", "generation", "lora", "tuner"],
    ),
    ("crates/cluster", &["error", "link", "packed", "message", "cuts", "session", "cluster", "threads"]),
    (
        "crates/cluster-mpi",
        &["error", "launcher", "failures", "names", "library", "meeting", "parts", "owner", "link"],
    ),
];

/// Files at the top of a crate that come after all modules: they only re-export.
const ABOVE: [&str; 2] = ["lib", "prelude"];

/// The modules of one crate and the arrows between them.
pub struct House {
    /// Each module's files with their text.
    modules: BTreeMap<String, Vec<Source>>,
    /// For each module the modules that it imports from, with the names it takes and the file that takes
    /// them.
    arrows: BTreeMap<(String, String), BTreeSet<(String, String)>>,
}

struct Source {
    path: String,
    lines: usize,
    file: syn::File,
}

/// The violations of all crates that have modules.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut violations = Vec::new();
    for (krate, order) in MODULES {
        let house = House::read(&root.join(krate).join("src"))?;
        violations
            .extend(house.violations(order).into_iter().map(|violation| format!("{krate}: {violation}")));
    }
    Ok(violations)
}

/// Modules, lines and arrows of all crates that have modules, as text.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn show(root: &Path) -> Result<String, String> {
    let mut text = String::new();
    for (krate, order) in MODULES {
        text.push_str(&format!("{krate}\n{}", House::read(&root.join(krate).join("src"))?.show(order)));
    }
    Ok(text)
}

impl House {
    fn read(src: &Path) -> Result<Self, String> {
        let mut paths = Vec::new();
        super::collect(src, &mut paths)?;
        paths.sort();
        let mut files = Vec::new();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
            let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let relative = path.strip_prefix(src).unwrap_or(path).to_path_buf();
            files.push((relative, text));
        }
        Self::of(&files)
    }

    /// The house of files, given by their paths below `src` and their texts.
    fn of(files: &[(PathBuf, String)]) -> Result<Self, String> {
        let mut modules: BTreeMap<String, Vec<Source>> = BTreeMap::new();
        let mut root = None;
        for (path, text) in files {
            let shown = path.to_string_lossy().replace('\\', "/");
            let file = syn::parse_file(text).map_err(|error| format!("{shown}: {error}"))?;
            let module = shown.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned();
            if module == "lib" {
                root = Some(file);
            } else if !is_test(&shown) && !ABOVE.contains(&module.as_str()) {
                let lines = text.lines().count();
                modules.entry(module).or_default().push(Source { path: shown, lines, file });
            }
        }
        let homes = homes(&modules, root.as_ref());
        let mut arrows: BTreeMap<(String, String), BTreeSet<(String, String)>> = BTreeMap::new();
        for (module, sources) in &modules {
            for source in sources {
                for name in imports(source) {
                    let home = if modules.contains_key(&name) { Some(&name) } else { homes.get(&name) };
                    if let Some(home) = home.filter(|home| *home != module) {
                        let arrow = (module.clone(), home.clone());
                        arrows.entry(arrow).or_default().insert((name.clone(), source.path.clone()));
                    }
                }
            }
        }
        Ok(Self { modules, arrows })
    }

    fn violations(&self, order: &[&str]) -> Vec<String> {
        let place = |module: &str| order.iter().position(|known| *known == module);
        let unplaced = self.modules.keys().filter(|module| place(module).is_none());
        let mut violations: Vec<String> = unplaced
            .map(|module| {
                format!(
                    "the module {module} has no place in the order of modules (xtask/src/tidy/modules.rs)"
                )
            })
            .collect();
        let gone = order.iter().filter(|module| !self.modules.contains_key(**module));
        violations.extend(gone.map(|module| format!("there is no module {module}")));
        for source in self.modules.values().flatten() {
            if imports(source).contains("*") {
                violations.push(format!("{} imports everything at the crate's root", source.path));
            }
        }
        for ((from, to), names) in &self.arrows {
            if place(from).is_some() && place(from) < place(to) {
                let names: Vec<String> =
                    names.iter().map(|(name, path)| format!("{name} in {path}")).collect();
                violations.push(format!(
                    "the module {from} may not import from {to}, which is later in the list: {}",
                    names.join(", ")
                ));
            }
        }
        violations
    }

    /// A line for each module, the latest first: its lines and the modules that it imports from.
    fn show(&self, order: &[&str]) -> String {
        let mut text = String::new();
        for module in order.iter().rev() {
            let lines: usize =
                self.modules.get(*module).into_iter().flatten().map(|source| source.lines).sum();
            let earlier = order
                .iter()
                .filter(|to| self.arrows.contains_key(&((*module).to_owned(), (**to).to_owned())));
            let earlier: Vec<&str> = earlier.copied().collect();
            text.push_str(&format!("  {module:<14} {lines:>6} lines  -> {}\n", earlier.join(", ")));
        }
        text
    }
}

/// Whether a file holds tests alone.
fn is_test(path: &str) -> bool {
    path.split('/').any(|part| part == "tests.rs" || part == "tests")
}

/// The module of each name that is defined in one module alone, or that the crate's root re-exports from a
/// module.
fn homes(modules: &BTreeMap<String, Vec<Source>>, root: Option<&syn::File>) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, BTreeSet<&String>> = BTreeMap::new();
    for (module, sources) in modules {
        for item in sources.iter().flat_map(|source| &source.file.items) {
            found.entry(defined(item).unwrap_or_default()).or_default().insert(module);
        }
    }
    let mut homes: BTreeMap<String, String> = found
        .into_iter()
        .filter(|(_, r)| r.len() == 1)
        .filter_map(|(n, r)| Some((n, (*r.first()?).clone())))
        .collect();
    for item in root.into_iter().flat_map(|file| &file.items) {
        if let Item::Use(item) = item
            && let UseTree::Path(path) = &item.tree
            && modules.contains_key(&path.ident.to_string())
        {
            for name in leaves(&path.tree) {
                homes.insert(name, path.ident.to_string());
            }
        }
    }
    homes
}

/// The name that an item defines.
fn defined(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Struct(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Const(item) => &item.ident,
        Item::Static(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// The names at the ends of a tree of imports, as they are called there.
fn leaves(tree: &UseTree) -> Vec<String> {
    match tree {
        UseTree::Path(path) => leaves(&path.tree),
        UseTree::Name(name) => vec![name.ident.to_string()],
        UseTree::Rename(rename) => vec![rename.rename.to_string()],
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
        UseTree::Glob(_) => Vec::new(),
    }
}

/// What a file takes from its crate: the first name behind each `crate::`, outside of its tests.
fn imports(source: &Source) -> BTreeSet<String> {
    let mut visitor = Imports { depth: depth(&source.path), names: BTreeSet::new() };
    visitor.visit_file(&source.file);
    visitor.names
}

/// The number of `super`s that lead from a file's module to the crate's root.
fn depth(path: &str) -> usize {
    path.split('/').filter(|part| *part != "mod.rs").count()
}

struct Imports {
    /// See [`depth`].
    depth: usize,
    names: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !item.attrs.iter().any(is_for_tests) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !item.attrs.iter().any(is_for_tests) {
            self.names.extend(from_root(&item.tree, self.depth));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let up = path.segments.iter().take_while(|segment| segment.ident == "super").count();
        let is_root = path.segments[up.min(path.segments.len() - 1)].ident == "crate";
        let first = if is_root { 1 } else { up };
        if is_root || up > 0 && up == self.depth {
            self.names.extend(path.segments.get(first).map(|segment| segment.ident.to_string()));
        }
        syn::visit::visit_path(self, path);
    }
}

/// The names that a tree of imports takes from the crate's root, which is `crate` or so many `super`s away.
fn from_root(tree: &UseTree, depth: usize) -> Vec<String> {
    match tree {
        UseTree::Path(path) if path.ident == "crate" => firsts(&path.tree),
        UseTree::Path(path) if path.ident == "super" && depth == 1 => firsts(&path.tree),
        UseTree::Path(path) if path.ident == "super" && depth > 1 => from_root(&path.tree, depth - 1),
        UseTree::Group(group) => group.items.iter().flat_map(|item| from_root(item, depth)).collect(),
        _ => Vec::new(),
    }
}

/// The names that a tree of imports begins with. A glob of the root has none, and is named as such.
fn firsts(tree: &UseTree) -> Vec<String> {
    match tree {
        UseTree::Path(path) => vec![path.ident.to_string()],
        UseTree::Name(name) => vec![name.ident.to_string()],
        UseTree::Rename(rename) => vec![rename.ident.to_string()],
        UseTree::Group(group) => group.items.iter().flat_map(firsts).collect(),
        UseTree::Glob(_) => vec!["*".to_owned()],
    }
}

/// `#[cfg(test)]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn house(files: &[(&str, &str)]) -> House {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        House::of(&files).expect("the files parse")
    }

    const FILES: [(&str, &str); 4] = [
        ("lib.rs", "mod low; mod high; pub use low::deep::{Thing as Renamed, Other};"),
        ("low/mod.rs", "pub struct Own; #[cfg(test)] mod tests { use crate::high::Far; }"),
        ("low/tests.rs", "use crate::high::Far;"),
        ("high.rs", "use crate::{Renamed, low::{A, B}};\nfn f() -> crate::Own { crate::Own }"),
    ];

    #[test]
    fn imports_from_earlier_modules_are_fine_and_tests_go_where_they_like() {
        let house = house(&FILES);
        assert_eq!(house.violations(&["low", "high"]), [""; 0]);
        assert_eq!(
            house.show(&["low", "high"]).lines().next(),
            Some("  high                2 lines  -> low")
        );
    }

    #[test]
    fn an_import_from_a_later_module_is_named_with_what_it_takes() {
        let violations = house(&FILES).violations(&["high", "low"]);
        assert_eq!(violations.len(), 1);
        assert!(violations[0].contains("the module high may not import from low"), "{violations:?}");
        for name in ["Renamed in high.rs", "low in high.rs", "Own in high.rs"] {
            assert!(violations[0].contains(name), "{name}: {violations:?}");
        }
    }

    #[test]
    fn an_arrow_through_super_is_seen_too() {
        for (path, text) in [
            ("low/mod.rs", "use super::high::Far;"),
            ("low/deep.rs", "use super::super::high::Far;"),
            ("low/deep.rs", "fn f() -> super::super::high::Far {}"),
            ("low/requests.rs", "use {crate::high::Far, std::fmt};"),
        ] {
            let house = house(&[(path, text), ("high.rs", "pub struct Far;")]);
            assert_eq!(house.violations(&["low", "high"]).len(), 1, "{path}: {text}");
        }
        let inside = house(&[("low/deep.rs", "use super::Own;"), ("high.rs", "pub struct Own;")]);
        assert_eq!(inside.violations(&["low", "high"]), [""; 0]);
    }

    #[test]
    fn every_module_has_its_place() {
        assert_eq!(house(&FILES).violations(&["low"]).len(), 1);
        assert_eq!(house(&FILES).violations(&["low", "high", "attic"]), ["there is no module attic"]);
    }
}
