//! Which op a node is: its type and the values of its fields, never its name.

use std::any::{Any, TypeId};

use serde::Serialize;

use crate::trace::Op;

/// What tells one op from another: its type and all of its fields.
///
/// Every type that derives [`serde::Serialize`] has an identity, and nothing else has one: an op that does
/// not derive it does not compile. The derived encoding has every field in it. Within a process two ops are
/// equal only if they also look alike to [`Debug`](std::fmt::Debug), so a field that serde was told to skip
/// still keeps them apart.
///
/// ```compile_fail
/// use unisono_graph::{Io, Pointwise, Var};
///
/// #[derive(Debug)] // `serde::Serialize` is missing.
/// struct Same;
///
/// impl Pointwise for Same {
///     const NAME: &str = "same";
///     const ARITY: usize = 1;
///     const WGSL: &str = "$0";
///     const CASES: &[&[f64]] = &[&[1.0]];
///     fn reference(&self, x: &[f64]) -> f64 {
///         x[0]
///     }
///     fn gradient(&self, Io { dy, .. }: &Io<'_>) -> Vec<Option<Var>> {
///         vec![Some((*dy).clone())]
///     }
/// }
/// ```
///
/// The encoding is canonical only where the fields are: an op keeps ordered containers (no hash map), skips
/// no field (`skip`, `skip_serializing_if`), and has neither untagged enums nor a lossy `serialize_with`.
pub trait Identity: Any {
    /// Returns the type's full path with its generic parameters, for example `unisono_graph::ops::mul::Mul`.
    fn type_name(&self) -> &'static str;

    /// Returns the fields in [postcard](https://postcard.jamesmunns.com/wire-format) encoding. Floats are
    /// their bits, so 0.0 and -0.0 differ, and so do the payloads of NaNs.
    ///
    /// # Errors
    /// Says what cannot be encoded, such as a sequence whose length is not known in advance.
    fn fields(&self) -> Result<Vec<u8>, String>;
}

impl<T: Serialize + Any> Identity for T {
    fn type_name(&self) -> &'static str {
        std::any::type_name::<T>()
    }

    fn fields(&self) -> Result<Vec<u8>, String> {
        postcard::to_allocvec(self).map_err(|error| error.to_string())
    }
}

/// An op's identity in the form that lasts: it is the same in every build of the same sources by the same
/// compiler.
///
/// Within a process [`TypeId`]s tell types apart, also those of one path in two versions of a crate. They
/// change from build to build, so what is written down holds this instead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Encoding {
    /// The op's type with its generic parameters, see [`Identity::type_name`].
    pub type_name: &'static str,
    /// The op's fields, see [`Identity::fields`].
    pub fields: Vec<u8>,
}

/// What two equal ops share within a process.
pub(crate) type Key = (TypeId, Vec<u8>, String);

impl dyn Op {
    /// Returns whether the op is a `T`.
    pub fn is<T: Op>(&self) -> bool {
        (self as &dyn Any).is::<T>()
    }

    /// Returns the op as a `T`, if it is one.
    pub fn downcast_ref<T: Op>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }

    /// Returns the identity that a file may hold, for example as a part of a run's.
    ///
    /// # Errors
    /// Says which field cannot be encoded, see [`Identity::fields`]; [`crate::Tape`] refuses such ops.
    pub fn encoding(&self) -> Result<Encoding, String> {
        Ok(Encoding { type_name: self.type_name(), fields: self.fields()? })
    }

    /// Returns what equal ops share in this process. `None` if the fields cannot be encoded: such an op
    /// equals no other.
    pub(crate) fn key(&self) -> Option<Key> {
        Some(((self as &dyn Any).type_id(), self.fields().ok()?, format!("{self:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Contract, MatMul, Mul};
    use crate::trace::{Constant, Io, Pointwise, Var};

    fn same(a: &dyn Op, b: &dyn Op) -> bool {
        a.key() == b.key()
    }

    #[test]
    fn ops_are_equal_where_type_and_fields_are() {
        assert!(same(&Mul, &Mul));
        assert!(!same(&Mul, &Contract));
        let transposed = MatMul { transpose_a: false, transpose_b: true };
        assert!(!same(&MatMul::default(), &transposed));
        assert!(same(&transposed, &transposed.clone()));
    }

    #[test]
    fn floats_are_their_bits() {
        assert!(same(&Constant(f32::NAN), &Constant(f32::NAN)));
        assert!(!same(&Constant(f32::NAN), &Constant(f32::from_bits(f32::NAN.to_bits() ^ 1))));
        assert!(!same(&Constant(0.0), &Constant(-0.0)));
    }

    /// An op that leaves fields out of its encoding, against the rules.
    #[derive(Debug, Serialize)]
    struct Clip {
        #[serde(skip_serializing_if = "Option::is_none")]
        low: Option<f32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        high: Option<f32>,
    }

    impl Pointwise for Clip {
        const NAME: &str = "clip";
        const ARITY: usize = 1;
        const WGSL: &str = "$0";
        const CASES: &[&[f64]] = &[&[1.0]];
        fn reference(&self, x: &[f64]) -> f64 {
            x[0]
        }
        fn gradient(&self, io: &Io<'_>) -> Vec<Option<Var>> {
            vec![Some(io.dy.clone())]
        }
    }

    #[test]
    fn fields_that_serde_skips_still_keep_ops_apart() {
        let (low, high) = (Clip { low: Some(1.0), high: None }, Clip { low: None, high: Some(1.0) });
        assert_eq!(low.fields(), high.fields());
        assert!(!same(&low, &high));
    }

    #[test]
    fn the_lasting_form_names_type_and_fields() {
        let op: &dyn Op = &Constant(1.0);
        let encoding = op.encoding().unwrap();
        assert!(encoding.type_name.ends_with("::Constant"), "{encoding:?}");
        assert_eq!(encoding.fields, 1.0f32.to_le_bytes());
    }
}
