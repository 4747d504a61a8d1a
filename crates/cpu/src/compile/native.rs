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
    Attention, FewProduct, MOST_ADDENDS, MOST_BORDERS, PanelAdd, PanelCopy, PanelProduct, PanelPut, Run,
    ViewCopy,
};

/// The name of the function that multiplies eight rows with a panel of 32 columns.
const PANEL_PRODUCT: &str = "unisono_panel_product";
/// The name of the function that copies a panel.
const PANEL_COPY: &str = "unisono_panel_copy";

/// The name of the function that writes a tile to the result.
const PANEL_PUT: &str = "unisono_panel_put";
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
        size_of::<PanelPut>(),
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
            Some(PANEL_PUT) => self.panel_put(arguments),
            Some(PANEL_ADD) => self.panel_add(arguments),
            Some(FEW_PRODUCT) => self.few_product(arguments),
            Some(name) => self.view_copy(name, arguments).or_else(|| self.attention(name, arguments)),
            None => None,
        };
        written.is_some()
    }

    fn panel_product(&mut self, arguments: &[Val]) -> Option<()> {
        let [Val::Many(rows), words @ ..] = arguments else { return None };
        let [Val::One(steps), Val::One(first), Val::One(to), Val::One(levels), Val::One(waits_at)] = words
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
        let words = [*step, *steps, *first, *to, *levels, *waits_at];
        let are_words = fields.iter().map(|(_, value)| value).chain(&words).all(is_word);
        if fields.len() != 8 || !are_words {
            return None;
        }
        let left = self.group_floats("stripe").or_else(|| self.buffer_floats("a"))?;
        let panel = self.group_floats("panel").or_else(|| self.buffer_floats("b"))?;
        let (tile, waiting) = (self.group_floats("tile")?, self.group_floats("waiting")?);
        let count = tile.count?;
        let left = self.start(left);
        let panel = self.start_of_row(panel, 32, *first);
        let [tile, waiting] = [tile, waiting].map(|floats| self.start_of_row(floats, 32, *to));
        let level = self.b.ins().iconst(types::I32, i64::from(count));
        fields.extend([
            (offset_of!(PanelProduct, left), left),
            (offset_of!(PanelProduct, panel), panel),
            (offset_of!(PanelProduct, tile), tile),
            (offset_of!(PanelProduct, waiting), waiting),
            (offset_of!(PanelProduct, step), *step),
            (offset_of!(PanelProduct, steps), *steps),
            (offset_of!(PanelProduct, levels), *levels),
            (offset_of!(PanelProduct, waits_at), *waits_at),
            (offset_of!(PanelProduct, level), level),
        ]);
        self.run(self.plan.vectors.panel_product(self.plan.mode.rounding), &fields);
        Some(())
    }

    fn panel_copy(&mut self, arguments: &[Val]) -> Option<()> {
        let [from @ .., Val::One(steps), Val::One(last), Val::One(to)] = arguments else { return None };
        let [Val::One(from), Val::One(step), Val::One(column)] = from else { return None };
        let words = [*from, *step, *column, *steps, *last, *to];
        if !words.iter().all(|value| self.ty(*value) == types::I32) {
            return None;
        }
        let right = self.buffer_floats("b")?;
        let panel = self.group_floats("panel").or_else(|| self.buffer_floats("panel"))?;
        let right = self.start_from(right, *from);
        let panel = self.start_of_row(panel, 32, *to);
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

    fn panel_put(&mut self, arguments: &[Val]) -> Option<()> {
        let [Val::One(at), Val::One(step), Val::One(rows), Val::One(first), Val::One(columns)] = arguments
        else {
            return None;
        };
        let words = [*at, *step, *rows, *first, *columns];
        if !words.iter().all(|value| self.ty(*value) == types::I32) {
            return None;
        }
        let (tile, result) = (self.group_floats("tile")?, self.buffer_floats("c")?);
        let fields = [
            (offset_of!(PanelPut, tile), self.start_from(tile, *first)),
            (offset_of!(PanelPut, to), self.start_from(result, *at)),
            (offset_of!(PanelPut, step), *step),
            (offset_of!(PanelPut, rows), *rows),
            (offset_of!(PanelPut, columns), *columns),
        ];
        self.run(self.plan.vectors.panel_put(), &fields);
        Some(())
    }

    fn panel_add(&mut self, arguments: &[Val]) -> Option<()> {
        let [words @ .., Val::Many(from), Val::Many(apart)] = arguments else { return None };
        let [Val::One(at), Val::One(step), Val::One(rows), Val::One(first), Val::One(columns)] = words else {
            return None;
        };
        let count = from.len();
        let is_word = |writer: &Self, value: &ir::Value| writer.ty(*value) == types::I32;
        let are_words = [at, step, rows, first, columns].into_iter().all(|value| is_word(self, value));
        if !are_words || count > MOST_ADDENDS || apart.len() != count {
            return None;
        }
        let Some(Literal::U32(product)) = self.constant("ADDS_PRODUCT") else { return None };
        if product as usize > count {
            return None;
        }
        let (tile, result) = (self.group_floats("tile")?, self.buffer_floats("c")?);
        let mut addends = Vec::new();
        for (n, (from, apart)) in from.iter().zip(apart.iter()).enumerate() {
            let (Val::One(from), Val::One(apart)) = (from, apart) else { return None };
            let Some(Literal::U32(binding)) = self.constant(&format!("ADDS_{n}")) else { return None };
            if !is_word(self, from) || !is_word(self, apart) {
                return None;
            }
            addends.push((self.buffer_floats(&format!("b{binding}"))?, *from, *apart));
        }
        let mut fields = vec![
            (offset_of!(PanelAdd, put.tile), self.start_from(tile, *first)),
            (offset_of!(PanelAdd, put.to), self.start_from(result, *at)),
            (offset_of!(PanelAdd, put.step), *step),
            (offset_of!(PanelAdd, put.rows), *rows),
            (offset_of!(PanelAdd, put.columns), *columns),
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
        let [Val::One(count), Val::One(first)] = arguments else { return None };
        let code = self.plan.vectors.view_copy()?;
        let of = |what: &str| format!("{}_{what}", operand.to_uppercase());
        let (Some(Literal::U32(borders)), Some(Literal::U32(apart)), Some(Literal::F32(fill))) =
            (self.constant(&of("BORDERS")), self.constant("STEPS"), self.constant(&of("FILL")))
        else {
            return None;
        };
        if borders as usize > MOST_BORDERS || [count, first].iter().any(|word| self.ty(**word) != types::I32)
        {
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
            (offset_of!(ViewCopy, to), self.start_of_row(to, width, *first)),
            (offset_of!(ViewCopy, lines), self.start(lines?)),
            (offset_of!(ViewCopy, steps), self.start(steps?)),
            (offset_of!(ViewCopy, count), *count),
        ];
        for (at, word) in words {
            fields.push((at, self.b.ins().iconst(types::I32, i64::from(word))));
        }
        self.run(code, &fields);
        Some(())
    }

    fn few_product(&mut self, arguments: &[Val]) -> Option<()> {
        let [Val::Many(a), Val::Many(b), Val::One(rows), Val::One(steps), Val::One(last)] = arguments else {
            return None;
        };
        let [Val::One(left), Val::One(row), Val::One(step)] = &a[..] else { return None };
        let [Val::One(right), Val::One(column), Val::One(right_step)] = &b[..] else { return None };
        let words = [
            (offset_of!(FewProduct, rows), *rows),
            (offset_of!(FewProduct, row), *row),
            (offset_of!(FewProduct, step), *step),
            (offset_of!(FewProduct, column), *column),
            (offset_of!(FewProduct, right_step), *right_step),
            (offset_of!(FewProduct, steps), *steps),
            (offset_of!(FewProduct, last), *last),
        ];
        let Some(Literal::U32(width)) = self.constant("WIDTH") else { return None };
        let all = words.iter().map(|(_, word)| word).chain([left, right]);
        if !all.copied().all(|word| self.ty(word) == types::I32) || !width.is_multiple_of(8) {
            return None;
        }
        let [first, second] = [self.buffer_floats("a")?, self.buffer_floats("b")?];
        let tile = self.group_floats("tile")?;
        let width = self.b.ins().iconst(types::I32, i64::from(width));
        let mut fields = words.to_vec();
        fields.extend([
            (offset_of!(FewProduct, left), self.start_from(first, *left)),
            (offset_of!(FewProduct, right), self.start_from(second, *right)),
            (offset_of!(FewProduct, tile), self.start(tile)),
            (offset_of!(FewProduct, width), width),
        ]);
        self.run(self.plan.vectors.few_product(self.plan.mode.rounding), &fields);
        Some(())
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
