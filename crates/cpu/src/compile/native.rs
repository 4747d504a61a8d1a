//! Functions of kernels for which there is code that a compiler knows better to make: a call of it takes the
//! place of theirs. They are known by their names and by the shape of what they use, and what they write in
//! WGSL is what the code computes, to the bit.

use std::mem::{offset_of, size_of};

use cranelift_codegen::ir::{
    self, AbiParam, InstBuilder, MemFlagsData, Signature, StackSlotData, StackSlotKind, types,
};
use naga::{AddressSpace, ArraySize, Function, GlobalVariable, Handle, Scalar, TypeInner, VectorSize};

use super::translator::Writer;
use super::value::{Memory, Pointer, Val};
use crate::native::{PanelCopy, PanelProduct, Run};

/// The name of the function that multiplies eight rows with a panel of 32 columns.
const PANEL_PRODUCT: &str = "unisono_panel_product";
/// The name of the function that copies a panel.
const PANEL_COPY: &str = "unisono_panel_copy";

/// The bytes of a task.
const TASK: usize = {
    let (product, copy) = (size_of::<PanelProduct>(), size_of::<PanelCopy>());
    if product > copy { product } else { copy }
};

/// An array of floats in memory.
#[derive(Clone, Copy)]
struct Floats {
    memory: Memory,
    /// How many floats it has, if that is known.
    count: Option<u32>,
}

impl Writer<'_, '_> {
    /// Writes a call of native code in the place of this function, if there is some. Returns whether it did.
    pub fn native(&mut self, function: &Function, arguments: &[Val]) -> bool {
        // Native code that is not optimized is slower than what Cranelift makes of its text.
        if self.plan.mode.checked || function.result.is_some() || cfg!(unoptimized) {
            return false;
        }
        let written = match function.name.as_deref() {
            Some(PANEL_PRODUCT) => self.panel_product(arguments),
            Some(PANEL_COPY) => self.panel_copy(arguments),
            _ => None,
        };
        written.is_some()
    }

    fn panel_product(&mut self, arguments: &[Val]) -> Option<()> {
        let [Val::Many(rows), Val::One(steps), Val::One(to), Val::One(levels), Val::One(waits)] = arguments
        else {
            return None;
        };
        let [Val::Many(at), Val::One(step)] = &rows[..] else { return None };
        let mut fields = Vec::new();
        for (row, value) in at.iter().enumerate() {
            let Val::One(value) = value else { return None };
            fields.push((offset_of!(PanelProduct, rows) + 4 * row, *value));
        }
        let is_word = |value: &ir::Value| self.ty(*value) == types::I32;
        let words = [*step, *steps, *to, *levels];
        let are_words = fields.iter().map(|(_, value)| value).chain(&words).all(is_word);
        if fields.len() != 8 || !are_words || self.ty(*waits) != types::I8 {
            return None;
        }
        let left = self.group_floats("stripe").or_else(|| self.buffer_floats("a"))?;
        let (panel, tile, waiting) =
            (self.group_floats("panel")?, self.group_floats("tile")?, self.group_floats("waiting")?);
        let count = tile.count?;
        let [left, panel, tile, waiting] = [left, panel, tile, waiting].map(|floats| self.start(floats));
        // A row of the tile has 32 numbers.
        let row = self.b.ins().uextend(types::I64, *to);
        let offset = self.b.ins().imul_imm_s(row, 128);
        let tile = self.b.ins().iadd(tile, offset);
        let waiting = self.b.ins().iadd(waiting, offset);
        let waits = self.b.ins().uextend(types::I32, *waits);
        let level = self.b.ins().iconst(types::I32, i64::from(count));
        fields.extend([
            (offset_of!(PanelProduct, left), left),
            (offset_of!(PanelProduct, panel), panel),
            (offset_of!(PanelProduct, tile), tile),
            (offset_of!(PanelProduct, waiting), waiting),
            (offset_of!(PanelProduct, step), *step),
            (offset_of!(PanelProduct, steps), *steps),
            (offset_of!(PanelProduct, levels), *levels),
            (offset_of!(PanelProduct, waits), waits),
            (offset_of!(PanelProduct, level), level),
        ]);
        self.run(self.plan.vectors.panel_product(self.plan.mode.rounding), &fields);
        Some(())
    }

    fn panel_copy(&mut self, arguments: &[Val]) -> Option<()> {
        let [Val::One(from), Val::One(step), Val::One(column), Val::One(steps), Val::One(last)] = arguments
        else {
            return None;
        };
        let words = [*from, *step, *column, *steps, *last];
        if !words.iter().all(|value| self.ty(*value) == types::I32) {
            return None;
        }
        let (right, panel) = (self.buffer_floats("b")?, self.group_floats("panel")?);
        let [right, panel] = [right, panel].map(|floats| self.start(floats));
        let first = self.b.ins().uextend(types::I64, *from);
        let offset = self.b.ins().ishl_imm_u(first, 2);
        let right = self.b.ins().iadd(right, offset);
        let fields = [
            (offset_of!(PanelCopy, from), right),
            (offset_of!(PanelCopy, panel), panel),
            (offset_of!(PanelCopy, step), *step),
            (offset_of!(PanelCopy, column), *column),
            (offset_of!(PanelCopy, steps), *steps),
            (offset_of!(PanelCopy, last), *last),
        ];
        self.run(self.plan.vectors.panel_copy(), &fields);
        Some(())
    }

    /// Calls code with a task of these fields, of which each has its offset.
    fn run<Task>(&mut self, code: Run<Task>, fields: &[(usize, ir::Value)]) {
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, TASK as u32, 4);
        let slot = *self.task.get_or_insert_with(|| self.b.create_sized_stack_slot(data));
        let task = self.b.ins().stack_addr(types::I64, slot, 0);
        for (offset, value) in fields {
            self.b.ins().store(MemFlagsData::trusted(), *value, task, *offset as i32);
        }
        let code = self.b.ins().iconst(types::I64, code as usize as i64);
        let mut signature = Signature::new(self.b.func.signature.call_conv);
        signature.params.push(AbiParam::new(types::I64));
        let signature = self.b.import_signature(signature);
        self.b.ins().call_indirect(signature, code, &[task]);
    }

    /// Returns the address of the first float.
    fn start(&mut self, floats: Floats) -> ir::Value {
        self.address(&floats.memory, 4, true)
    }

    /// Returns the array of this name that a workgroup shares.
    fn group_floats(&self, name: &str) -> Option<Floats> {
        self.floats(name, |space| space == AddressSpace::WorkGroup)
    }

    /// Returns the array of this name in a buffer.
    fn buffer_floats(&self, name: &str) -> Option<Floats> {
        self.floats(name, |space| matches!(space, AddressSpace::Storage { .. }))
    }

    /// Returns the global variable of this name, if it is an array of f32 or vectors of four of them.
    fn floats(&self, name: &str, has_space: fn(AddressSpace) -> bool) -> Option<Floats> {
        let module = self.plan.module;
        let own = |(_, variable): &(Handle<GlobalVariable>, &GlobalVariable)| {
            variable.name.as_deref() == Some(name) && has_space(variable.space)
        };
        let (handle, variable) = module.global_variables.iter().find(own)?;
        let TypeInner::Array { base, size, .. } = module.types[variable.ty].inner else { return None };
        let each = match module.types[base].inner {
            TypeInner::Vector { size: VectorSize::Quad, scalar } if scalar == Scalar::F32 => 4,
            TypeInner::Scalar(scalar) if scalar == Scalar::F32 => 1,
            _ => return None,
        };
        let count = match size {
            ArraySize::Constant(count) => count.get().checked_mul(each),
            _ => None,
        };
        match self.globals[handle.index()] {
            Some(Pointer::Memory(memory)) => Some(Floats { memory, count }),
            _ => None,
        }
    }
}
