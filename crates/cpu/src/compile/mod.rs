//! Translates WGSL to the CPU's code: naga reads it, `translator` makes Cranelift's functions of it,
//! and Cranelift compiles these.
//!
//! All functions are inlined. Variables live in registers: a loop whose turns are known is unrolled, so that
//! its counter is a number and tiles are indexed by numbers. A variable that is indexed by something else is
//! moved to memory ([`Stop::Demote`]), and the translation begins again.

mod arithmetic;
mod bodies;
mod control;
mod expression;
mod functions;
mod half;
mod jit;
mod loops;
mod memory;
mod native;
mod pack;
mod parts;
mod rounding;
mod target;
mod translator;
mod value;

use std::collections::HashSet;
use std::ffi::c_void;

use cranelift_codegen::Context as Compilation;
use cranelift_codegen::ir::{AbiParam, Signature, types};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_module::Module as _;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ShaderStage, StorageAccess, TypeInner};

pub(crate) use crate::native::Bound;
use crate::native::Rounding;
use crate::wide::Wide;

use jit::Jit;
pub(crate) use jit::jit;
#[cfg(feature = "targets")]
pub use target::Features;
pub(crate) use target::Target;
use translator::{Facts, Translator};
use value::Root;

/// The most bytes of variables that an invocation has in memory.
pub(crate) const MOST_FRAME: usize = 192 << 10;

/// The most invocations of a workgroup.
pub(crate) const MOST_LANES: u32 = 1024;

/// The highest number of a binding.
pub(crate) const MOST_BINDING: u32 = 1000;

/// The most bytes of memory that a workgroup shares.
pub(crate) const MOST_SHARED: u32 = 1 << 20;

/// The bytes of a line of the cache. Variables that a workgroup shares begin at one if they are that long.
pub(crate) const LINE: usize = 64;

/// What WGSL may use beyond its core, at most.
#[cfg(any(test, feature = "targets"))]
pub(crate) const EXTENSIONS: Capabilities = Capabilities::SHADER_INT64.union(Capabilities::SHADER_FLOAT16);

/// A kernel as machine code.
pub(crate) struct Program {
    /// The buffers that it uses, by number.
    pub bindings: Vec<Binding>,
    /// The number of invocations of a workgroup.
    pub lanes: u32,
    /// The same in each dimension.
    pub size: [u32; 3],
    /// The bytes of memory that a workgroup shares.
    pub shared_bytes: usize,
    /// Whether its invocations wait for one another.
    pub has_barriers: bool,
    code: Code,
}

/// What computes the invocations of a kernel.
enum Code {
    /// Machine code, whose memory its module holds. It is called with a reference to the program alone.
    Compiled(Main, #[expect(dead_code, reason = "the memory is freed with it")] Box<Jit>),
    Wide(Box<Wide>),
}

/// How a kernel is compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mode {
    /// Whether no access may leave the memory that it is to. Otherwise the kernel is trusted.
    pub checked: bool,
    pub rounding: Rounding,
}

/// A module of WGSL that was read.
#[derive(Debug)]
pub(crate) struct Source {
    pub module: Module,
    pub info: ModuleInfo,
}

impl Source {
    /// Reads a module.
    ///
    /// # Errors
    /// A message, if it is not valid WGSL, or uses what is not `enabled`.
    pub fn parse(wgsl: &str, enabled: Capabilities) -> Result<Self, String> {
        let options =
            naga::front::wgsl::Options { capabilities: enabled, ..naga::front::wgsl::Options::new() };
        let read = naga::front::wgsl::Frontend::new_with_options(options).parse(wgsl);
        let module = read.map_err(|error| error.emit_to_string(wgsl))?;
        let info = Validator::new(ValidationFlags::all(), enabled)
            .validate(&module)
            .map_err(|error| error.emit_to_string(wgsl))?;
        Ok(Self { module, info })
    }
}

/// A buffer of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub number: u32,
    /// The least bytes that it needs.
    pub least: u64,
    pub kind: Kind,
}

/// How a kernel declares a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Uniform,
    /// Storage that it reads.
    Read,
    /// Storage that it may write.
    Written,
}

/// What a kernel knows of its launch and its workgroup. Its code reads it by the offsets of the fields.
#[repr(C)]
pub(crate) struct Context {
    /// The buffers by their numbers.
    pub bindings: *const Bound,
    /// The memory that the workgroup shares.
    pub shared: *mut u8,
    /// Waits until all invocations of the workgroup have come so far.
    pub wait: unsafe extern "C" fn(*const c_void),
    /// What `wait` is called with.
    pub waiter: *const c_void,
    /// The number of the workgroup in each dimension.
    pub group: [u32; 3],
    /// The number of workgroups in each dimension.
    pub groups: [u32; 3],
}

/// Computes the invocations of a workgroup from one number up to another.
type Main = unsafe extern "C" fn(*const Context, u32, u32);

/// Why a translation ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// This variable has to be in memory.
    Demote(Root),
    /// This is not supported.
    Unsupported(String),
}

impl Stop {
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("bindings", &self.bindings).field("lanes", &self.lanes).finish()
    }
}

// SAFETY: the code is finished and never changes, and what it writes is what its context says.
#[expect(unsafe_code, reason = "machine code is only read")]
unsafe impl Send for Program {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "machine code is only read")]
unsafe impl Sync for Program {}

impl Program {
    /// Compiles an entry point of a module, the only one if it has no name.
    ///
    /// # Errors
    /// A message, if there is no such entry point or it needs what is not supported.
    pub fn compile(source: &Source, entry: Option<&str>, mode: Mode, target: Target) -> Result<Self, String> {
        if let Some(wide) = Self::wide(source, entry, mode, target)? {
            return Ok(wide);
        }
        let isa = target.isa()?;
        let Translated { mut compilation, facts, bindings, size, entry } =
            translated(source, entry, mode, target, &*isa)?;
        let lanes = size.iter().product();
        let failed = |what: &dyn std::fmt::Display| format!("{entry}: {what}");
        let mut code = Jit::new(isa);
        let function =
            code.declare_anonymous_function(&compilation.func.signature).map_err(|error| failed(&error))?;
        code.define_function(function, &mut compilation).map_err(|error| failed(&format!("{error:?}")))?;
        let frame = compilation
            .compiled_code()
            .map_or(0, |code| code.buffer.frame_layout().map_or(0, |frame| frame.frame_to_fp_offset));
        // Variables begin at lines of the cache. The gaps before them are no longer than they are.
        if frame as usize > MOST_FRAME || facts.shared_bytes > 2 * MOST_SHARED as usize {
            let bytes = facts.shared_bytes;
            return Err(failed(&format!(
                "{frame} bytes of variables and {bytes} bytes of shared memory: not supported"
            )));
        }
        code.finalize_definitions().map_err(|error| failed(&error))?;
        let main = code.get_finalized_function(function);
        // SAFETY: the function was made with this signature.
        #[expect(unsafe_code, reason = "the code is known by its address")]
        let main = unsafe { std::mem::transmute::<*const u8, Main>(main) };
        Ok(Self {
            bindings,
            lanes,
            size,
            shared_bytes: facts.shared_bytes,
            has_barriers: facts.has_barriers,
            code: Code::Compiled(main, Box::new(code)),
        })
    }

    /// Returns an entry point of a module as a [`Wide`] kernel, or `None` if it is none.
    ///
    /// # Errors
    /// As [`Program::compile`].
    fn wide(
        source: &Source,
        entry: Option<&str>,
        mode: Mode,
        target: Target,
    ) -> Result<Option<Self>, String> {
        // What is not optimized is slower than what Cranelift makes.
        if mode.checked || target != Target::Host || cfg!(unoptimized) {
            return Ok(None);
        }
        let Source { module, info } = source;
        let index = point(module, entry)?;
        let code = || target.isa().ok().map(jit);
        let Some(wide) = Wide::new(module, info, index, (target.vectors(), mode.rounding), &code) else {
            return Ok(None);
        };
        let bindings = bindings(module, info.get_entry_point(index))?;
        let size = module.entry_points[index].workgroup_size;
        Ok(Some(Self {
            bindings,
            lanes: size[0],
            size,
            shared_bytes: 0,
            has_barriers: false,
            code: Code::Wide(Box::new(wide)),
        }))
    }

    /// Returns the kernel, if it computes many invocations at once.
    pub fn as_wide(&self) -> Option<&Wide> {
        match &self.code {
            Code::Compiled(..) => None,
            Code::Wide(wide) => Some(wide),
        }
    }

    /// Computes the invocations of a workgroup from number `first` up to `end`.
    ///
    /// # Safety
    /// The context's bindings are those of [`Program::bindings`], each with at least as many bytes as it
    /// needs; `shared` has [`Program::shared_bytes`]; nobody else writes what the kernel reads or writes. A
    /// kernel that is not checked stays within its bindings by itself.
    #[expect(unsafe_code, reason = "machine code runs")]
    pub unsafe fn run(&self, context: &Context, first: u32, end: u32) {
        // SAFETY: what the caller promises.
        unsafe {
            match &self.code {
                Code::Compiled(main, _) => main(context, first, end),
                Code::Wide(wide) => wide.run_some(context.bindings, context.group, first..end),
            }
        }
    }
}

/// An entry point as Cranelift's function.
struct Translated {
    compilation: Compilation,
    facts: Facts,
    bindings: Vec<Binding>,
    size: [u32; 3],
    entry: String,
}

/// Translates an entry point of a module, the only one if it has no name.
fn translated(
    source: &Source,
    entry: Option<&str>,
    mode: Mode,
    target: Target,
    isa: &dyn TargetIsa,
) -> Result<Translated, String> {
    let Source { module, info } = source;
    let index = point(module, entry)?;
    let point = &module.entry_points[index];
    let entry = point.name.as_str();
    if point.stage != ShaderStage::Compute {
        return Err(format!("{entry} is no compute shader"));
    }
    let bindings = bindings(module, info.get_entry_point(index))?;
    if point.workgroup_size_overrides.is_some() {
        return Err(format!("{entry}: a size of workgroups that is overridden: not supported"));
    }
    let [x, y, z] = point.workgroup_size;
    let lanes = x.checked_mul(y).and_then(|face| face.checked_mul(z)).unwrap_or(u32::MAX);
    if lanes > MOST_LANES {
        return Err(format!("{entry}: {lanes} invocations in a workgroup, more than {MOST_LANES}"));
    }
    let failed = |what: &dyn std::fmt::Display| format!("{entry}: {what}");
    let mut in_memory: HashSet<Root> = HashSet::new();
    let mut compilation = Compilation::new();
    let mut builders = FunctionBuilderContext::new();
    let facts = loop {
        compilation.func.signature = signature(isa);
        let builder = FunctionBuilder::new(&mut compilation.func, &mut builders);
        let vectors = target.vectors();
        let translator = Translator::new((module, info), index, &bindings, &in_memory, mode, vectors);
        match translator.translate(builder, isa.frontend_config()) {
            Ok(facts) => break facts,
            Err(Stop::Demote(root)) if in_memory.insert(root) => {
                compilation.clear();
                builders = FunctionBuilderContext::new();
            }
            Err(Stop::Demote(root)) => return Err(failed(&format!("{root:?} is in memory already"))),
            Err(Stop::Unsupported(what)) => return Err(failed(&format!("{what}: not supported"))),
        }
    };
    Ok(Translated { compilation, facts, bindings, size: point.workgroup_size, entry: entry.to_owned() })
}

/// Returns the place of an entry point of a module, the only one if it has no name.
fn point(module: &Module, entry: Option<&str>) -> Result<usize, String> {
    let points = &module.entry_points;
    if entry.is_none() && points.len() > 1 {
        return Err("several entry points, and none is named".to_owned());
    }
    let found = points.iter().position(|point| entry.is_none_or(|entry| point.name == entry));
    found.ok_or_else(|| format!("there is no entry point {}", entry.unwrap_or_default()))
}

/// Returns the machine code of the only entry point of a module, for a CPU that may be another one.
///
/// # Errors
/// As [`Program::compile`].
#[cfg(feature = "targets")]
pub(crate) fn code(source: &Source, mode: Mode, target: Target) -> Result<Vec<u8>, String> {
    let isa = target.isa()?;
    let mut compilation = translated(source, None, mode, target, &*isa)?.compilation;
    let compiled = compilation.compile(&*isa, &mut cranelift_codegen::control::ControlPlane::default());
    let compiled = compiled.map_err(|error| format!("{:?}", error.inner))?;
    for relocation in compiled.buffer.relocs() {
        if !rounding::is_known(&relocation.target) {
            return Err(format!("the code needs {:?}", relocation.target));
        }
    }
    Ok(compiled.code_buffer().to_vec())
}

fn signature(isa: &dyn TargetIsa) -> Signature {
    let mut signature = Signature::new(isa.default_call_conv());
    signature.params.extend([types::I64, types::I32, types::I32].map(AbiParam::new));
    signature
}

/// Returns whether there is a compiler for this CPU.
pub(crate) fn has_compiler() -> bool {
    cranelift_native::builder().is_ok()
}

/// Returns the buffers that an entry point uses.
fn bindings(module: &Module, info: &naga::valid::FunctionInfo) -> Result<Vec<Binding>, String> {
    let mut found = Vec::new();
    for (handle, variable) in module.global_variables.iter() {
        if info[handle].is_empty() {
            continue;
        }
        let kind = match variable.space {
            AddressSpace::Uniform => Kind::Uniform,
            AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => Kind::Written,
            AddressSpace::Storage { .. } => Kind::Read,
            AddressSpace::Private | AddressSpace::WorkGroup => continue,
            space => return Err(format!("variables in {space:?}: not supported")),
        };
        let number = match &variable.binding {
            Some(binding) if binding.group == 0 && binding.binding <= MOST_BINDING => binding.binding,
            _ => return Err(format!("buffers are bound in group 0 alone, up to number {MOST_BINDING}")),
        };
        let inner = &module.types[variable.ty].inner;
        let least = match *inner {
            TypeInner::Array { size: naga::ArraySize::Dynamic, stride, .. } => u64::from(stride),
            _ => u64::from(inner.size(module.to_ctx())),
        };
        found.push(Binding { number, least, kind });
    }
    found.sort_by_key(|binding| binding.number);
    Ok(found)
}
