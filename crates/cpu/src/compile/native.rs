//! Replaces some functions of kernels with calls of native code, for which Rust's compiler generates better
//! code than Cranelift does for the functions' WGSL. These functions are recognised by their names and by the
//! shape of the variables that they use. The native code computes what the WGSL of the function says, to the
//! bit.

mod attention;

use std::mem::{offset_of, size_of};

use cranelift_codegen::ir::{
    self, AbiParam, InstBuilder, MemFlagsData, Signature, StackSlotData, StackSlotKind, types,
};
use naga::{
    AddressSpace, ArraySize, Expression, Function, GlobalVariable, Handle, Literal, Scalar, TypeInner,
    VectorSize,
};

use super::translator::Writer;
use super::value::{Memory, Pointer, Val};
use crate::native::{
    Attention, FewProduct, Goal, MOST_ADDENDS, MOST_BORDERS, PanelAdd, PanelCopy, PanelProduct, Run, ViewCopy,
};

/// The name of the function that multiplies eight rows with a panel of 32 columns.
const PANEL_PRODUCT: &str = "unisono_panel_product";
/// The name of the function that copies a panel.
const PANEL_COPY: &str = "unisono_panel_copy";

/// The name of the function that adds numbers in memory to a tile while it writes it.
const PANEL_ADD: &str = "unisono_panel_add";

/// The functions that copy what is needed of an operand which is only a view: their names, the operand, where
/// they copy it to, and how many lines of it.
const VIEW_COPIES: [(&str, &str, &str, u32); 2] =
    [("unisono_view_stripe", "a", "stripe", 8), ("unisono_view_panel", "b", "panel", 32)];

/// The name of the function that multiplies few rows.
const FEW_PRODUCT: &str = "unisono_few_product";

/// The bytes of a task.
const TASK: usize = {
    let all = [
        size_of::<PanelProduct>(),
        size_of::<PanelCopy>(),
        size_of::<PanelAdd>(),
        size_of::<ViewCopy>(),
        size_of::<FewProduct>(),
        size_of::<Attention>(),
    ];
    let (mut most, mut at) = (0, 0);
    while at < all.len() {
        most = if all[at] > most { all[at] } else { most };
        at += 1;
    }
    most
};

/// An array of f32 or u32 in memory.
#[derive(Clone, Copy)]
struct Words {
    memory: Memory,
    /// How many it has, if that is known.
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
            Some(PANEL_ADD) => self.panel_add(arguments),
            Some(FEW_PRODUCT) => self.few_product(arguments),
            Some(name) => self.view_copy(name, arguments).or_else(|| self.attention(name, arguments)),
            None => None,
        };
        written.is_some()
    }

    fn panel_product(&mut self, arguments: &[Val]) -> Option<()> {
        let [Val::Many(rows), words @ .., Val::Many(goal)] = arguments else { return None };
        let [steps, first, row, levels, waits_at] = self.u32s(words)?;
        let [Val::Many(at), step] = &rows[..] else { return None };
        let [step] = self.u32s(std::slice::from_ref(step))?;
        let (at, [to, goal @ ..]) = (self.u32s::<8>(at)?, self.u32s::<7>(goal)?);
        let mut fields = Vec::new();
        for (row, value) in at.into_iter().enumerate() {
            fields.push((offset_of!(PanelProduct, rows) + 4 * row, value));
        }
        let left = self.group_floats("stripe").or_else(|| self.buffer_floats("a"))?;
        let panel = self.group_floats("panel").or_else(|| self.buffer_floats("b"))?;
        let waiting = self.group_floats("waiting")?;
        let (Some(Literal::U32(most)), Some(Literal::Bool(has_tile))) =
            (self.constant("SHARDS"), self.constant("HAS_TILE"))
        else {
            return None;
        };
        let level = waiting.count?.checked_div(most)?;
        let result = if has_tile { self.group_floats("tile") } else { self.buffer_floats("c") }?;
        let left = self.start(left);
        let panel = self.start_of_row(panel, 32, first);
        let waiting = self.start_of_row(waiting, 32, row);
        let level = self.b.ins().iconst(types::I32, i64::from(level));
        let places = [
            offset_of!(Goal, step),
            offset_of!(Goal, rows),
            offset_of!(Goal, columns),
            offset_of!(Goal, split),
            offset_of!(Goal, width),
            offset_of!(Goal, jump),
        ];
        fields.extend(places.map(|place| offset_of!(PanelProduct, goal) + place).into_iter().zip(goal));
        fields.extend([
            (offset_of!(PanelProduct, left), left),
            (offset_of!(PanelProduct, panel), panel),
            (offset_of!(PanelProduct, goal.to), self.start_from(result, to)),
            (offset_of!(PanelProduct, waiting), waiting),
            (offset_of!(PanelProduct, step), step),
            (offset_of!(PanelProduct, steps), steps),
            (offset_of!(PanelProduct, levels), levels),
            (offset_of!(PanelProduct, waits_at), waits_at),
            (offset_of!(PanelProduct, level), level),
        ]);
        self.run(self.plan.vectors.panel_product(self.plan.mode.rounding), &fields);
        Some(())
    }

    fn panel_copy(&mut self, arguments: &[Val]) -> Option<()> {
        let [from, step, column, steps, last, to] = self.u32s(arguments)?;
        let right = self.buffer_floats("b")?;
        let panel = self.group_floats("panel").or_else(|| self.buffer_floats("panel"))?;
        let right = self.start_from(right, from);
        let panel = self.start_of_row(panel, 32, to);
        let fields = [
            (offset_of!(PanelCopy, from), right),
            (offset_of!(PanelCopy, panel), panel),
            (offset_of!(PanelCopy, step), step),
            (offset_of!(PanelCopy, column), column),
            (offset_of!(PanelCopy, steps), steps),
            (offset_of!(PanelCopy, last), last),
        ];
        self.run(self.plan.vectors.panel_copy(), &fields);
        Some(())
    }

    fn panel_add(&mut self, arguments: &[Val]) -> Option<()> {
        let [words @ .., Val::Many(from), Val::Many(apart)] = arguments else { return None };
        let [at, step, rows, first, columns] = self.u32s(words)?;
        let count = from.len();
        if count > MOST_ADDENDS || apart.len() != count {
            return None;
        }
        let Some(Literal::U32(product)) = self.constant("ADDS_PRODUCT") else { return None };
        if product as usize > count {
            return None;
        }
        let (tile, result) = (self.group_floats("tile")?, self.buffer_floats("c")?);
        let mut addends = Vec::new();
        for (n, (from, apart)) in from.iter().zip(apart.iter()).enumerate() {
            let [from, apart] = self.u32s(&[from.clone(), apart.clone()])?;
            let Some(Literal::U32(binding)) = self.constant(&format!("ADDS_{n}")) else { return None };
            addends.push((self.buffer_floats(&format!("b{binding}"))?, from, apart));
        }
        let mut fields = vec![
            (offset_of!(PanelAdd, tile), self.start_from(tile, first)),
            (offset_of!(PanelAdd, to), self.start_from(result, at)),
            (offset_of!(PanelAdd, step), step),
            (offset_of!(PanelAdd, rows), rows),
            (offset_of!(PanelAdd, columns), columns),
        ];
        for (n, (floats, from, apart)) in addends.into_iter().enumerate() {
            fields.push((offset_of!(PanelAdd, from) + 8 * n, self.start_from(floats, from)));
            fields.push((offset_of!(PanelAdd, apart) + 4 * n, apart));
        }
        for (at, word) in
            [(offset_of!(PanelAdd, count), count as u32), (offset_of!(PanelAdd, product), product)]
        {
            fields.push((at, self.b.ins().iconst(types::I32, i64::from(word))));
        }
        self.run(self.plan.vectors.panel_add(), &fields);
        Some(())
    }

    fn view_copy(&mut self, name: &str, arguments: &[Val]) -> Option<()> {
        let (_, operand, copy, width) = *VIEW_COPIES.iter().find(|(own, ..)| *own == name)?;
        let [count, first] = self.u32s(arguments)?;
        let code = self.plan.vectors.view_copy()?;
        let of = |what: &str| format!("{}_{what}", operand.to_uppercase());
        let (Some(Literal::U32(borders)), Some(Literal::U32(apart)), Some(Literal::F32(fill))) =
            (self.constant(&of("BORDERS")), self.constant("STEPS"), self.constant(&of("FILL")))
        else {
            return None;
        };
        if borders as usize > MOST_BORDERS {
            return None;
        }
        let [from, to] = [self.buffer_floats(operand)?, self.group_floats(copy)?];
        let [lines, steps] = ["lines", "steps"].map(|what| self.group_words(&format!("{operand}_{what}")));
        let mut words = vec![
            (offset_of!(ViewCopy, width), width),
            (offset_of!(ViewCopy, apart), apart),
            (offset_of!(ViewCopy, borders), borders),
            (offset_of!(ViewCopy, fill), fill.to_bits()),
        ];
        for i in 0..borders as usize {
            let Some(Literal::U32(limit)) = self.constant(&of(&format!("LIMIT_{i}"))) else { return None };
            words.push((offset_of!(ViewCopy, limits) + 4 * i, limit));
        }
        let mut fields = vec![
            (offset_of!(ViewCopy, from), self.start(from)),
            (offset_of!(ViewCopy, to), self.start_of_row(to, width, first)),
            (offset_of!(ViewCopy, lines), self.start(lines?)),
            (offset_of!(ViewCopy, steps), self.start(steps?)),
            (offset_of!(ViewCopy, count), count),
        ];
        for (at, word) in words {
            fields.push((at, self.b.ins().iconst(types::I32, i64::from(word))));
        }
        self.run(code, &fields);
        Some(())
    }

    fn few_product(&mut self, arguments: &[Val]) -> Option<()> {
        let [Val::Many(a), Val::Many(b), words @ ..] = arguments else { return None };
        let [rows, steps, last] = self.u32s(words)?;
        let [left, row, step] = self.u32s(a)?;
        let [right, column, right_step] = self.u32s(b)?;
        let Some(Literal::U32(width)) = self.constant("WIDTH") else { return None };
        if !width.is_multiple_of(8) {
            return None;
        }
        let [first, second] = [self.buffer_floats("a")?, self.buffer_floats("b")?];
        let tile = self.group_floats("tile")?;
        let width = self.b.ins().iconst(types::I32, i64::from(width));
        let fields = [
            (offset_of!(FewProduct, left), self.start_from(first, left)),
            (offset_of!(FewProduct, right), self.start_from(second, right)),
            (offset_of!(FewProduct, tile), self.start(tile)),
            (offset_of!(FewProduct, width), width),
            (offset_of!(FewProduct, rows), rows),
            (offset_of!(FewProduct, row), row),
            (offset_of!(FewProduct, step), step),
            (offset_of!(FewProduct, column), column),
            (offset_of!(FewProduct, right_step), right_step),
            (offset_of!(FewProduct, steps), steps),
            (offset_of!(FewProduct, last), last),
        ];
        self.run(self.plan.vectors.few_product(self.plan.mode.rounding), &fields);
        Some(())
    }

    /// Returns the values as u32 words. Returns `None` if there are not `COUNT` of them, or one is no u32.
    fn u32s<const COUNT: usize>(&self, values: &[Val]) -> Option<[ir::Value; COUNT]> {
        let word = |value: &Val| match value {
            Val::One(value) if self.ty(*value) == types::I32 => Some(*value),
            _ => None,
        };
        values.iter().map(word).collect::<Option<Vec<_>>>()?.try_into().ok()
    }

    /// Returns the value of the constant of this name.
    fn constant(&self, name: &str) -> Option<Literal> {
        let module = self.plan.module;
        let (_, constant) = module.constants.iter().find(|(_, own)| own.name.as_deref() == Some(name))?;
        match module.global_expressions[constant.init] {
            Expression::Literal(literal) => Some(literal),
            _ => None,
        }
    }

    /// Returns the address of a float by its number.
    fn start_from(&mut self, floats: Words, first: ir::Value) -> ir::Value {
        self.start_of_row(floats, 1, first)
    }

    /// Returns the address of row number `row` in an array whose rows have `width` floats each.
    fn start_of_row(&mut self, floats: Words, width: u32, row: ir::Value) -> ir::Value {
        let start = self.start(floats);
        let row = self.b.ins().uextend(types::I64, row);
        let offset = self.b.ins().imul_imm_s(row, 4 * i64::from(width));
        self.b.ins().iadd(start, offset)
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
    fn start(&mut self, floats: Words) -> ir::Value {
        self.address(&floats.memory, 4, true)
    }

    /// Returns the array of this name that a workgroup shares.
    fn group_floats(&self, name: &str) -> Option<Words> {
        self.array(name, Scalar::F32, |space| space == AddressSpace::WorkGroup)
    }

    /// Returns the array of u32 of this name that a workgroup shares.
    fn group_words(&self, name: &str) -> Option<Words> {
        self.array(name, Scalar::U32, |space| space == AddressSpace::WorkGroup)
    }

    /// Returns the array of this name in a buffer.
    fn buffer_floats(&self, name: &str) -> Option<Words> {
        self.array(name, Scalar::F32, |space| matches!(space, AddressSpace::Storage { .. }))
    }

    /// Returns the global variable of this name, if it is an array of this scalar or of vectors of four of
    /// them.
    fn array(&self, name: &str, own: Scalar, has_space: fn(AddressSpace) -> bool) -> Option<Words> {
        let module = self.plan.module;
        let is_named = |(_, variable): &(Handle<GlobalVariable>, &GlobalVariable)| {
            variable.name.as_deref() == Some(name) && has_space(variable.space)
        };
        let (handle, variable) = module.global_variables.iter().find(is_named)?;
        let TypeInner::Array { base, size, .. } = module.types[variable.ty].inner else { return None };
        let each = match module.types[base].inner {
            TypeInner::Vector { size: VectorSize::Quad, scalar } if scalar == own => 4,
            TypeInner::Scalar(scalar) if scalar == own => 1,
            _ => return None,
        };
        let count = match size {
            ArraySize::Constant(count) => count.get().checked_mul(each),
            _ => None,
        };
        match self.globals[handle.index()] {
            Some(Pointer::Memory(memory)) => Some(Words { memory, count }),
            _ => None,
        }
    }
}
