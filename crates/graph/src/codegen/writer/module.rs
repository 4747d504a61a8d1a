//! The end of writing a kernel: bindings, snippets and body become a module.

use std::fmt::Write as _;

use unisono_shaders::{Params, Snippet};

use super::{HALF, Writer};
use crate::codegen::{Binding, Bound};
use crate::plan::{Access, Kernel};
use crate::trace::NodeId;

impl Writer<'_> {
    /// Returns the kernel with the params of `P` and this body.
    pub(in crate::codegen) fn finish<P: Params>(self, name: String, body: &str) -> Bound {
        let starts = self.starts.numbers();
        let flow = self.flow();
        let wgsl = format!(
            "{}{}{}{}{}\
             @compute @workgroup_size({}) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n{}{body}}}\n",
            if self.has_halves() { "enable f16;\n" } else { "" },
            self.snippets(),
            P::declaration(starts.len()),
            self.declarations(1),
            self.declared,
            self.workgroup,
            self.shared,
        );
        let bindings = self.accesses();
        let kernel = Kernel { name, wgsl, bindings };
        Bound { kernel, starts, flow, stores: self.stores(), lanes: 1 }
    }

    /// Returns for each start whether it is that of the elements that invocations compute, or of one number
    /// for all of them. Returns `None` if invocations need other elements too.
    fn flow(&self) -> Option<Vec<bool>> {
        let is_plain = |id: &NodeId| self.ty(*id).count() > 1 && self.stores.place(*id).runs.is_none();
        let is_flat = !self.looks_around && self.unit.roots.iter().all(is_plain);
        if is_flat { self.starts.flow() } else { None }
    }

    pub(in crate::codegen) fn has_halves(&self) -> bool {
        self.bindings.iter().any(|(_, _, element)| *element == HALF)
    }

    pub(in crate::codegen) fn snippets(&self) -> String {
        self.snippets.iter().map(Snippet::text).collect()
    }

    /// Returns how the kernel uses each of its bindings.
    pub(in crate::codegen) fn accesses(&self) -> Vec<Access> {
        self.bindings.iter().map(|(_, access, _)| *access).collect()
    }

    pub(in crate::codegen) fn stores(self) -> Vec<Binding> {
        self.bindings.into_iter().map(|b| b.0).collect()
    }

    /// Returns the bindings, from number `first` on, and a function for each binding of which single elements
    /// are loaded.
    pub(in crate::codegen) fn declarations(&self, first: usize) -> String {
        let mut wgsl = String::new();
        for (i, (_, access, element)) in self.bindings.iter().enumerate() {
            let mode = if *access == Access::Read { "read" } else { "read_write" };
            let quads = self.quads.contains_key(&i);
            let held = if quads { format!("vec4<{element}>") } else { (*element).into() };
            let _ =
                writeln!(wgsl, "@group(0) @binding({}) var<storage, {mode}> b{i}: array<{held}>;", i + first);
            if self.words.contains(&i) {
                let word = if quads { "at / 4u][at % 4u" } else { "at" };
                let (ty, word) = if *element == HALF {
                    ("f32", format!("f32(b{i}[{word}])"))
                } else {
                    (*element, format!("b{i}[{word}]"))
                };
                let _ = writeln!(wgsl, "fn w{i}(at: u32) -> {ty} {{ return {word}; }}");
            }
        }
        wgsl
    }
}
