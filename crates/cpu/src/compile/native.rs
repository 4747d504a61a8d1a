//! Functions of kernels for which there is code that a compiler knows better to make: a call of it takes the
//! place of theirs. They are known by their names and by the shape of what they use, and what they write in
//! WGSL is what the code computes, to the bit.

use cranelift_codegen::ir::{
    self, AbiParam, InstBuilder, MemFlagsData, Signature, StackSlotData, StackSlotKind, types,
};
use naga::{AddressSpace, Function, GlobalVariable, Handle, Scalar, TypeInner, VectorSize};

use super::Stop;
use super::translator::Writer;
use super::value::{Memory, Pointer, Val};

/// The name of the function that multiplies eight rows with a panel of 32 columns.
const PANEL_PRODUCT: &str = "unisono_panel_product";

impl Writer<'_, '_> {
    /// Writes a call of native code in the place of this function, if there is some.
    pub fn native(&mut self, function: &Function, arguments: &[Val]) -> Result<bool, Stop> {
        if self.plan.checked || function.name.as_deref() != Some(PANEL_PRODUCT) {
            return Ok(false);
        }
        let [Val::Many(rows), Val::One(steps), Val::One(to)] = arguments else { return Ok(false) };
        let [Val::Many(at), Val::One(step)] = &rows[..] else { return Ok(false) };
        let mut starts = Vec::new();
        for value in at.iter() {
            match value {
                Val::One(value) if self.ty(*value) == types::I32 => starts.push(*value),
                _ => return Ok(false),
            }
        }
        let is_shared = |space| space == AddressSpace::WorkGroup;
        let is_storage = |space| matches!(space, AddressSpace::Storage { .. });
        let left = match self.vectors("stripe", &is_shared) {
            Some(stripe) => Some(stripe),
            None => self.vectors("a", &is_storage),
        };
        let (panel, tile) = (self.vectors("panel", &is_shared), self.vectors("tile", &is_shared));
        let (Some(left), Some(panel), Some(tile)) = (left, panel, tile) else { return Ok(false) };
        let is_word = |value: &ir::Value| self.ty(*value) == types::I32;
        let are_words = [step, steps, to].into_iter().all(is_word);
        if starts.len() != 8 || !are_words || function.result.is_some() {
            return Ok(false);
        }
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, 32, 4);
        let slot = *self.starts.get_or_insert_with(|| self.b.create_sized_stack_slot(data));
        let list = self.b.ins().stack_addr(types::I64, slot, 0);
        for (row, start) in starts.into_iter().enumerate() {
            self.b.ins().store(MemFlagsData::trusted(), start, list, 4 * row as i32);
        }
        let [left, panel, tile] = [left, panel, tile].map(|memory| self.address(&memory, 16, true));
        // A row of the tile has 32 numbers.
        let row = self.b.ins().uextend(types::I64, *to);
        let offset = self.b.ins().imul_imm_s(row, 128);
        let tile = self.b.ins().iadd(tile, offset);
        let code = self.b.ins().iconst(types::I64, self.plan.product as usize as i64);
        let mut signature = Signature::new(self.b.func.signature.call_conv);
        let parameters = [types::I64, types::I64, types::I32, types::I64, types::I32, types::I64];
        signature.params.extend(parameters.map(AbiParam::new));
        let signature = self.b.import_signature(signature);
        self.b.ins().call_indirect(signature, code, &[left, list, *step, panel, *steps, tile]);
        Ok(true)
    }

    /// Returns where the global variable of this name is, if it is an array of f32 or vectors of four of
    /// them.
    fn vectors(&self, name: &str, has_space: &dyn Fn(AddressSpace) -> bool) -> Option<Memory> {
        let module = self.plan.module;
        let own = |(_, variable): &(Handle<GlobalVariable>, &GlobalVariable)| {
            variable.name.as_deref() == Some(name) && has_space(variable.space)
        };
        let (handle, variable) = module.global_variables.iter().find(own)?;
        let TypeInner::Array { base, .. } = module.types[variable.ty].inner else { return None };
        let is_float = match module.types[base].inner {
            TypeInner::Vector { size: VectorSize::Quad, scalar } => scalar == Scalar::F32,
            TypeInner::Scalar(scalar) => scalar == Scalar::F32,
            _ => false,
        };
        match self.globals[handle.index()] {
            Some(Pointer::Memory(memory)) if is_float => Some(memory),
            _ => None,
        }
    }
}
