//! One set of tensors makes one file, and it is the file that the safetensors crate would write.

use std::borrow::Cow;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use safetensors::tensor::{Dtype as Stored, View};
use unisono_checkpoint::{Tensor, TensorDType, Tensors, parse_tensors, write_model};

struct Stock<'a>(&'a Tensor);

impl View for Stock<'_> {
    fn dtype(&self) -> Stored {
        match self.0.dtype() {
            TensorDType::F32 => Stored::F32,
            TensorDType::U8 => Stored::U8,
            TensorDType::F64 => Stored::F64,
            other => panic!("no {other} is made here"),
        }
    }
    fn shape(&self) -> &[usize] {
        self.0.shape()
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.0.bytes().into()
    }
    fn data_len(&self) -> usize {
        self.0.bytes().len()
    }
}

fn tensor() -> impl Strategy<Value = Tensor> {
    let dtype = prop_oneof![Just(TensorDType::F32), Just(TensorDType::U8), Just(TensorDType::F64)];
    (dtype, vec(0usize..4, 0..4), any::<u8>()).prop_map(|(dtype, shape, seed)| {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        let bytes = (0..bytes).map(|i| (i as u8).wrapping_mul(37).wrapping_add(seed)).collect();
        Tensor::new(dtype, shape, bytes).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_file_is_what_the_stock_writer_makes_and_reads_back(
        tensors in btree_map("[a-z._\"\\\\é\u{1}]{0,6}", tensor(), 0..8),
    ) {
        let tensors: Tensors = tensors;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        write_model(&path, &tensors).unwrap();
        let file = std::fs::read(&path).unwrap();
        let stock = safetensors::serialize(tensors.iter().map(|(name, tensor)| (name, Stock(tensor))), None).unwrap();
        prop_assert_eq!(&file, &stock);
        prop_assert_eq!(parse_tensors(&path, &file).unwrap(), tensors);
    }
}
