//! What tests run of every op: operands to compare it with its reference, and to differentiate it
//! numerically.

use std::sync::Arc;

use super::Pointwise;
use crate::trace::Op;
use crate::values::Type;

/// An op of the registry.
pub struct Entry {
    /// The op's name. Names are unique in the registry.
    pub name: &'static str,
    /// Makes the op's cases.
    pub cases: fn() -> Vec<Case>,
}

/// An op with operands, for tests to run.
pub struct Case {
    /// The op with its fields.
    pub op: Arc<dyn Op>,
    /// The operands' types.
    pub types: Vec<Type>,
    /// The operands' values, repeated as needed. `None` stands for random ones.
    pub values: Vec<Option<Vec<f64>>>,
}

impl Case {
    /// Returns a case with random operands.
    pub(super) fn random(op: impl Op, types: &[Type]) -> Self {
        Self { op: Arc::new(op), types: types.to_vec(), values: vec![None; types.len()] }
    }

    /// Sets operand `index` to `values`, repeated as needed.
    pub(super) fn with(mut self, index: usize, values: &[f64]) -> Self {
        self.values[index] = Some(values.to_vec());
        self
    }
}

/// Returns a pointwise op on its own cases, with samples and without.
pub(super) fn pointwise<P: Pointwise>(op: fn() -> P) -> Vec<Case> {
    let column = |i: usize| P::CASES.iter().map(|row| row[i]).collect::<Vec<_>>();
    let at =
        |ty: Type| (0..P::ARITY).fold(Case::random(op(), &vec![ty; P::ARITY]), |c, i| c.with(i, &column(i)));
    vec![at(Type::global(&[P::CASES.len()])), at(Type::sample(&[P::CASES.len()])), at(Type::sample(&[3, 5]))]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use crate::ops::{Pad, REGISTRY, Slice};
    use crate::{DType, Tape, Type, Var};

    /// The leaves: inputs and states have no values of their own to compare, and every case has constants
    /// around it.
    const LEAVES: [&str; 3] = ["Constant", "Input", "State"];

    /// The types for which a source file of this folder implements a trait of ops.
    fn implemented() -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
        let mut found = BTreeSet::new();
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        for file in files.filter(|path| path.is_file()) {
            let text = std::fs::read_to_string(file).unwrap();
            let types = text.lines().filter_map(|line| {
                let rest = line.strip_prefix("impl Op for ").or(line.strip_prefix("impl Pointwise for "))?;
                rest.split(' ').next()
            });
            found.extend(types.map(str::to_owned));
        }
        found
    }

    #[test]
    fn every_op_of_this_folder_has_cases() {
        let cases = REGISTRY.iter().flat_map(|part| part.iter()).flat_map(|entry| (entry.cases)());
        let path = |name: &'static str| name.rsplit("::").next().unwrap_or(name).to_owned();
        let registered: BTreeSet<String> = cases.map(|case| path((*case.op).type_name())).collect();
        let mut missing = implemented();
        assert!(missing.len() > 40, "{missing:?}");
        missing.retain(|op| !registered.contains(op) && !LEAVES.contains(&op.as_str()));
        assert!(missing.is_empty(), "without an entry in the registry: {missing:?}");
    }

    #[test]
    fn ops_without_their_operands_are_errors() {
        for case in REGISTRY.iter().flat_map(|part| part.iter()).flat_map(|entry| (entry.cases)()) {
            for count in 0..case.types.len() {
                let tape = Tape::new();
                let operand = |(at, ty): (usize, &Type)| tape.input(&at.to_string(), ty.clone());
                let operands: Vec<Var> = case.types[..count].iter().enumerate().map(operand).collect();
                tape.apply_dyn(case.op.clone(), &operands.iter().collect::<Vec<_>>());
                let name = case.op.name();
                // A mask is an operand that attention need not have, and a concat may have one part.
                let is_free = name.starts_with("attention") || name == "concat";
                assert!(is_free && count > 0 || tape.finish().is_err(), "{name} of {count} operands");
            }
        }
    }

    #[test]
    fn boxes_beyond_all_numbers_are_errors() {
        let refused = |record: &dyn Fn(&Var)| {
            let tape = Tape::new();
            record(&tape.input("x", Type::sample(&[4])));
            tape.finish().unwrap_err().to_string()
        };
        let slice = refused(&|x| _ = x.apply(Slice { start: vec![usize::MAX], dims: vec![2] }));
        assert!(slice.contains("do not lie in"), "{slice}");
        let pad = refused(&|x| _ = x.apply(Pad { before: vec![usize::MAX], dims: vec![2] }));
        assert!(pad.contains("does not lie in a box"), "{pad}");
        let pad = refused(&|x| _ = x.pad(&[usize::MAX], &[2]));
        assert!(pad.contains("does not lie in a box"), "{pad}");
    }

    #[test]
    fn integers_are_no_operands_of_functions() {
        let tape = Tape::new();
        tape.input("x", Type::sample(&[4]).of(DType::I32)).relu();
        let error = tape.finish().unwrap_err().to_string();
        assert!(error.contains("relu: takes f32, and got [B, 4] i32"), "{error}");
        let tape = Tape::new();
        let ids = tape.input("x", Type::sample(&[4]).of(DType::I32));
        tape.input("table", Type::global(&[3, 2]).of(DType::I32)).embed(&ids);
        let error = tape.finish().unwrap_err().to_string();
        assert!(error.contains("needs an f32 table"), "{error}");
    }

    #[test]
    fn names_are_unique() {
        let names: Vec<&str> = REGISTRY.iter().flat_map(|part| part.iter()).map(|entry| entry.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }

    #[test]
    fn an_entry_has_the_name_of_its_op() {
        for entry in REGISTRY.iter().flat_map(|part| part.iter()) {
            assert!((entry.cases)().iter().all(|case| case.op.name() == entry.name), "{}", entry.name);
        }
    }
}
