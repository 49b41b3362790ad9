//! The modules at the root of a package depend on each other without cycles. Cargo ensures the same between packages.

use std::collections::{BTreeMap, BTreeSet};

use syn::{ItemMod, ItemUse, Path, UseTree, visit::Visit};

use super::{SourceFile, assert_none, sources};

#[test]
fn modules_of_a_package_form_no_cycle() {
    let mut packages: BTreeMap<String, Uses> = BTreeMap::new();
    for SourceFile { path, text } in sources() {
        let Some((package, inside)) = path.split_once("/src/") else { continue };
        let modules: Vec<_> = inside.trim_end_matches(".rs").split('/').collect();
        // Test files may use any module.
        if matches!(modules[..], ["lib" | "main"]) || modules.iter().any(|module| TEST_MODULES.contains(module)) {
            continue;
        }
        packages.entry(package.to_owned()).or_default().add(&modules, &text);
    }
    assert!(packages.len() > 10, "only {} packages", packages.len());
    assert_none(
        packages.iter().filter_map(|(package, uses)| Some(format!("{package}: {}", uses.cycle()?.join(" → ")))),
    );

    let mut control = Uses::default();
    control.add(&["a"], "use crate::b::{self, c}; fn f() {}");
    control.add(&["b", "inner"], "fn f() { crate::c::g(); }");
    assert_eq!(control.cycle(), None);
    control.add(&["c"], "#[cfg(test)] mod tests { use crate::a::T; }");
    assert_eq!(control.cycle(), None, "tests may");
    control.add(&["c"], "use super::a::T;");
    assert_eq!(control.cycle(), Some(vec!["a".to_owned(), "b".to_owned(), "c".to_owned(), "a".to_owned()]));
}

/// Files that are compiled for tests alone.
const TEST_MODULES: [&str; 3] = ["tests", "testing", "models"];

/// Which module at the root of a package uses which others.
#[derive(Debug, Default)]
struct Uses(BTreeMap<String, BTreeSet<String>>);

impl Uses {
    /// Adds the modules that the file of this module uses.
    fn add(&mut self, modules: &[&str], text: &str) {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{modules:?}: {error}"));
        let mut seen = ModuleNames { depth: modules.len(), roots: BTreeSet::new() };
        seen.visit_file(&file);
        let own = modules[0].to_owned();
        seen.roots.remove(&own);
        self.0.entry(own).or_default().append(&mut seen.roots);
    }

    /// A path of uses from a module back to itself, if there is one.
    fn cycle(&self) -> Option<Vec<String>> {
        self.0.keys().find_map(|start| self.way(&mut vec![start.clone()]))
    }

    fn way(&self, way: &mut Vec<String>) -> Option<Vec<String>> {
        for next in self.0.get(way.last()?).into_iter().flatten().filter(|next| self.0.contains_key(*next)) {
            if way.first() == Some(next) {
                way.push(next.clone());
                return Some(way.clone());
            }
            if !way.contains(next) {
                way.push(next.clone());
                if let Some(found) = self.way(way) {
                    return Some(found);
                }
                way.pop();
            }
        }
        None
    }
}

/// Names from the root of the package that a file uses.
#[derive(Debug)]
struct ModuleNames {
    /// Depth of the code in modules: this number of `super` leads to the root.
    depth: usize,
    roots: BTreeSet<String>,
}

impl ModuleNames {
    /// Adds the root name of a path that begins with `crate`, or with the number of `super` that leads to the root.
    fn see(&mut self, path: &[String]) {
        let supers = path.iter().take_while(|word| *word == "super").count();
        let root = match path {
            [first, second, ..] if first == "crate" => Some(second),
            _ if supers == self.depth => path.get(supers),
            _ => None,
        };
        self.roots.extend(root.cloned());
    }

    fn see_tree(&mut self, tree: &UseTree, before: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.see_tree(&path.tree, before);
                before.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.see_tree(tree, before)),
            UseTree::Name(name) => self.see(&[before.as_slice(), &[name.ident.to_string()]].concat()),
            UseTree::Rename(name) => self.see(&[before.as_slice(), &[name.ident.to_string()]].concat()),
            UseTree::Glob(_) => self.see(before),
        }
    }
}

impl Visit<'_> for ModuleNames {
    fn visit_item_use(&mut self, item: &ItemUse) {
        self.see_tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &Path) {
        let words: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.see(&words);
        syn::visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        let is_test = item.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && quote::ToTokens::to_token_stream(&attribute.meta).to_string().contains("test")
        });
        if !is_test {
            self.depth += 1;
            syn::visit::visit_item_mod(self, item);
            self.depth -= 1;
        }
    }
}
