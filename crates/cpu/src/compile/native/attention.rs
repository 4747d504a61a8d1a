//! Calls of the native code for attention.

use std::mem::offset_of;

use cranelift_codegen::ir::{self, InstBuilder, types};
use naga::Literal;

use super::Words;
use crate::compile::translator::Writer;
use crate::compile::value::Val;
use crate::native::{Attention, MOST_WIDTH, Part};

/// The names of the functions that compute the parts of attention.
const ATTENTION: [(&str, Part); 3] = [
    ("unisono_attention", Part::Forward),
    ("unisono_attention_query", Part::Query),
    ("unisono_attention_key", Part::Key),
];

impl Writer<'_, '_> {
    pub(super) fn attention(&mut self, name: &str, arguments: &[Val]) -> Option<()> {
        let (_, part) = *ATTENTION.iter().find(|(own, _)| *own == name)?;
        let [Val::One(first)] = arguments else { return None };
        let code = self.plan.vectors.attention(part, self.plan.mode.rounding)?;
        let word = |writer: &Self, name: &str| match writer.constant(name) {
            Some(Literal::U32(word)) => Some(word),
            _ => None,
        };
        let sizes = [
            (offset_of!(Attention, queries), word(self, "T")?),
            (offset_of!(Attention, keys), word(self, "S")?),
            (offset_of!(Attention, d), word(self, "D")?),
            (offset_of!(Attention, e), word(self, "E")?),
        ];
        let is_known = |(_, width): &(usize, u32)| width.is_multiple_of(4) && *width <= MOST_WIDTH;
        let are_some = sizes.iter().all(|(_, size)| *size > 0);
        if self.ty(*first) != types::I32 || !are_some || !sizes[2..].iter().all(is_known) {
            return None;
        }
        let (Some(Literal::Bool(causal)), Some(Literal::F32(scale))) =
            (self.constant("CAUSAL"), self.constant("SCALE"))
        else {
            return None;
        };
        let mut words = sizes.to_vec();
        words.push((offset_of!(Attention, causal), causal.into()));
        words.push((offset_of!(Attention, scale), scale.to_bits()));
        let all = [
            ("q", offset_of!(Attention, q.start), Some(offset_of!(Attention, q.step))),
            ("k", offset_of!(Attention, k.start), Some(offset_of!(Attention, k.step))),
            ("v", offset_of!(Attention, v.start), Some(offset_of!(Attention, v.step))),
            ("dy", offset_of!(Attention, dy.start), Some(offset_of!(Attention, dy.step))),
            ("out", offset_of!(Attention, out.start), Some(offset_of!(Attention, out.step))),
            ("dq", offset_of!(Attention, dq.start), Some(offset_of!(Attention, dq.step))),
            ("dk", offset_of!(Attention, dk.start), Some(offset_of!(Attention, dk.step))),
            ("dv", offset_of!(Attention, dv.start), Some(offset_of!(Attention, dv.step))),
            ("lse", offset_of!(Attention, lse), None),
            ("delta", offset_of!(Attention, delta), None),
            ("lse_out", offset_of!(Attention, lse_out), None),
            ("mask", offset_of!(Attention, mask), None),
        ];
        let mut starts = Vec::new();
        for (name, at, step) in all {
            let start = self.named_start(name)?;
            if let (Some(at), Some(_)) = (step, start) {
                words.push((at, word(self, &format!("{}_STEP", name.to_uppercase()))?));
            }
            starts.push((name, at, start));
        }
        let is_there = |name: &str| starts.iter().any(|(own, _, start)| *own == name && start.is_some());
        let needed: &[&str] = match part {
            Part::Forward => &["q", "k", "v", "out"],
            Part::Query => &["q", "k", "v", "dy", "lse", "delta", "dq"],
            Part::Key if is_there("dk") => &["q", "k", "v", "dy", "lse", "delta"],
            Part::Key => &["q", "k", "dy", "lse", "dv"],
        };
        if !needed.iter().all(|name| is_there(name)) {
            return None;
        }
        if is_there("mask") {
            words.push((offset_of!(Attention, mask_query), word(self, "MASK_QUERY")?));
            words.push((offset_of!(Attention, mask_key), word(self, "MASK_KEY")?));
        }
        let mut fields = vec![(offset_of!(Attention, first), *first)];
        for (_, at, start) in starts {
            let start = match start {
                Some((floats, base)) => self.start_from(floats, base),
                None => self.b.ins().iconst(types::I64, 0),
            };
            fields.push((at, start));
        }
        for (at, word) in words {
            fields.push((at, self.b.ins().iconst(types::I32, i64::from(word))));
        }
        self.run(code, &fields);
        Some(())
    }

    /// Returns the array `NAME_data` in a buffer and the number of its first element `NAME_base`, or nothing
    /// if the module has none. `None`: it has one of another type.
    #[expect(clippy::option_option, reason = "no array, and none of this type")]
    fn named_start(&mut self, name: &str) -> Option<Option<(Words, ir::Value)>> {
        let (data, base) = (format!("{name}_data"), format!("{name}_base"));
        let all = &self.plan.module.global_variables;
        let Some((handle, variable)) = all.iter().find(|(_, own)| own.name.as_ref() == Some(&base)) else {
            return Some(None);
        };
        let pointer = self.globals[handle.index()].clone()?;
        let Val::One(base) = self.load(&pointer, &self.plan.module.types[variable.ty].inner).ok()? else {
            return None;
        };
        let floats = self.buffer_floats(&data)?;
        (self.ty(base) == types::I32).then_some(Some((floats, base)))
    }
}
