//! Chooses adapters by what a user writes on a command line.

use crate::{Adapter, Arithmetic, Backend, GpuError, Kind, adapters};

/// Returns the adapters that a user asked for.
///
/// Each entry of `wanted` is a part of an adapter's label ([`Adapter::label`]) in upper or lower case
/// (`nvidia`), a backend (`gl`; `cpu` is the CPU), or both (`gl:llvmpipe`). It selects every adapter that
/// matches. An adapter that matches several entries is returned once. `cpu:split` is the CPU in another
/// arithmetic than its default ([`Arithmetic::name`]). If adapters have the same name, `NAME [vulkan]`
/// or `#1` selects the first and `#2` the second. An entry without a letter or a digit matches nothing.
/// Backends that are not named are not loaded, except those that [`adapters`] lists by default.
///
/// Without any entry, it returns every GPU, or the CPU if there is no GPU. (It returns one software driver if
/// the build lacks the feature `cpu`, or if kernels cannot be compiled for this CPU.)
///
/// # Errors
/// [`GpuError::NoAdapter`] for the first entry that matches nothing, with a list of the adapters that exist.
/// [`GpuError::NoBackend`] if this build has no backend, or not the one that an entry names.
pub fn select<S: AsRef<str>>(wanted: &[S]) -> Result<Vec<Adapter>, GpuError> {
    let default = || adapters(&[]);
    if !Backend::ALL.iter().any(|backend| backend.is_compiled()) {
        let wanted: Vec<&str> = wanted.iter().map(AsRef::as_ref).collect();
        return Err(GpuError::NoBackend {
            wanted: wanted.join(", "),
            missing: Backend::ALL.map(Backend::feature).to_vec(),
        });
    }
    if wanted.is_empty() {
        return best(default());
    }
    let mut chosen = Vec::new();
    for text in wanted.iter().map(S::as_ref) {
        let (backend, part) = parse(text);
        if let Some(missing) = backend.filter(|backend| !backend.is_compiled()) {
            return Err(GpuError::NoBackend { wanted: text.to_owned(), missing: vec![missing.feature()] });
        }
        let asked = of_arithmetic(part).filter(|_| backend == Some(Backend::Cpu));
        let is_asked = asked.is_some();
        let there = match (asked, backend) {
            (Some(cpu), _) => vec![cpu],
            (None, Some(backend)) => adapters(&[backend]),
            (None, None) => default(),
        };
        // Every label has an empty text in it, and a bracket.
        // A number is no name, but versions and models have digits.
        let says_something = !(is_number(part) && part.len() < 3)
            && (backend.is_some() || part.contains(char::is_alphanumeric));
        let is_meant = |adapter: &&Adapter| is_asked || says_something && is_named(adapter, &there, part);
        let fits: Vec<&Adapter> = there.iter().filter(is_meant).collect();
        if fits.is_empty() {
            let available = there.iter().map(Adapter::label).collect();
            return Err(GpuError::NoAdapter { wanted: text.to_owned(), available });
        }
        for adapter in fits {
            if !chosen.contains(adapter) {
                chosen.push(adapter.clone());
            }
        }
    }
    Ok(chosen)
}

/// Returns the CPU in the arithmetic with this name, or with the name or the label that the CPU has in it.
fn of_arithmetic(name: &str) -> Option<Adapter> {
    if let Ok(arithmetic) = name.parse() {
        return Adapter::cpu(arithmetic);
    }
    Arithmetic::ALL.into_iter().filter_map(Adapter::cpu).find(|cpu| cpu.name == name || cpu.label() == name)
}

/// Returns the adapters that a user asked for, as [`select`] does, with the CPU among them in this
/// arithmetic.
///
/// # Errors
/// As [`select`]; [`GpuError::NoAdapter`] if the CPU is not among the adapters.
pub fn select_in<S: AsRef<str>>(wanted: &[S], arithmetic: Arithmetic) -> Result<Vec<Adapter>, GpuError> {
    let mut chosen = select(wanted)?;
    let available = chosen.iter().map(Adapter::label).collect();
    let mut cpus = chosen.iter_mut().filter(|adapter| adapter.arithmetic.is_some()).peekable();
    let in_arithmetic = Adapter::cpu(arithmetic).filter(|_| cpus.peek().is_some());
    let cpu = in_arithmetic
        .ok_or_else(|| GpuError::NoAdapter { wanted: format!("cpu:{arithmetic}"), available })?;
    cpus.for_each(|adapter| adapter.clone_from(&cpu));
    Ok(chosen)
}

fn best(mut there: Vec<Adapter>) -> Result<Vec<Adapter>, GpuError> {
    if there.is_empty() {
        return Err(GpuError::NoAdapter { wanted: String::new(), available: Vec::new() });
    }
    if there.iter().any(|adapter| adapter.kind != Kind::Cpu) {
        there.retain(|adapter| adapter.kind != Kind::Cpu);
        if there.iter().any(|adapter| adapter.lacks_compiler().is_none()) {
            there.retain(|adapter| adapter.lacks_compiler().is_none());
        }
    } else {
        // The CPU's own code is faster than a graphics driver's for it.
        there.sort_by_key(|adapter| (adapter.backend != Backend::Cpu, adapter.backend));
        there.truncate(1);
    }
    Ok(there)
}

/// Parses an entry: `gl:llvm` -> (gl, `llvm`); `gl` -> (gl, ``); `llvm` -> (none, `llvm`).
fn parse(text: &str) -> (Option<Backend>, &str) {
    let (head, part) = text.split_once(':').unwrap_or((text, ""));
    match Backend::ALL.into_iter().find(|backend| backend.to_string().eq_ignore_ascii_case(head.trim())) {
        Some(backend) => (Some(backend), part.trim()),
        None => (None, text.trim()),
    }
}

/// Returns whether an adapter among others is meant by a part of its label. The first of several with the
/// same name may also be called `#1`.
fn is_named(adapter: &Adapter, all: &[Adapter], part: &str) -> bool {
    let Adapter { name, backend, .. } = adapter;
    let is_second = |other: &Adapter| other.twin == 1 && (&other.name, &other.backend) == (name, backend);
    let is_first = || adapter.twin == 0 && all.iter().any(is_second);
    contains(&adapter.label(), part) || is_first() && contains(&format!("{name} #1 [{backend}]"), part)
}

/// Returns whether a label contains a text. If the text ends in a number such as `#1`, the number must match
/// completely: `#1` is not found in `#12`.
fn contains(whole: &str, part: &str) -> bool {
    let (whole, part) = (whole.to_lowercase(), part.to_lowercase());
    let ends_in_number = part.rsplit_once('#').is_some_and(|(_, number)| is_number(number));
    let goes_on = |at: usize| whole[at + part.len()..].starts_with(|next: char| next.is_ascii_digit());
    whole.match_indices(&part).any(|(at, _)| !ends_in_number || !goes_on(at))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::tests::adapter;

    #[test]
    fn a_backend_may_stand_before_a_name() {
        assert_eq!(parse("gl"), (Some(Backend::Gl), ""));
        assert_eq!(parse("GL:llvm"), (Some(Backend::Gl), "llvm"));
        assert_eq!(parse("Radeon RX"), (None, "Radeon RX"));
        assert_eq!(parse("a:b"), (None, "a:b"));
    }

    #[test]
    fn twins_are_chosen_by_their_numbers() {
        let twin = |twin| Adapter { twin, ..adapter(Backend::Vulkan, 1, "") };
        let mut all: Vec<Adapter> = (0..12).map(twin).collect();
        all.push(Adapter { name: "Other".to_owned(), ..twin(0) });
        let chosen = |part: &str| -> Vec<usize> {
            (0..all.len()).filter(|&at| is_named(&all[at], &all, part)).collect()
        };
        for (part, number) in [("#1", 0), ("gpu #1", 0), ("#2", 1), ("#10", 9), ("#12 [", 11)] {
            assert_eq!(chosen(part), [number], "{part}");
        }
        assert_eq!((chosen("GPU"), chosen("GPU ["), chosen("other")), ((0..12).collect(), vec![0], vec![12]));
        assert_eq!([chosen("#13"), chosen("other #1")], [[], []]);
    }

    #[test]
    fn a_backend_that_is_left_out_is_named() {
        for missing in Backend::ALL.into_iter().filter(|backend| !backend.is_compiled()) {
            assert_eq!(adapters(&[missing]), []);
            let error = select(&[missing.to_string()]).unwrap_err();
            assert!(matches!(&error, GpuError::NoBackend { .. }), "{error}");
            assert!(error.to_string().contains(missing.feature()), "{error}");
        }
        if !Backend::ALL.iter().any(|backend| backend.is_compiled()) {
            let error = select::<&str>(&[]).unwrap_err().to_string();
            assert!(Backend::ALL.iter().all(|backend| error.contains(backend.feature())), "{error}");
        }
    }

    #[test]
    fn the_cpu_is_chosen_by_its_arithmetic() {
        let Some(cpu) = Adapter::cpu(Arithmetic::default()) else { return };
        assert_eq!(select(&["cpu"]), Ok(vec![cpu.clone()]));
        assert_eq!(select(&["cpu:fused"]), Ok(vec![cpu]));
        let labels = ["split", "fused-subnormals"].map(|name| {
            let [found] = &select(&[format!("cpu:{name}")]).unwrap()[..] else { panic!("not one") };
            assert_eq!(found.arithmetic, name.parse().ok());
            // Its name chooses it as well.
            assert_eq!(select(&[format!("cpu:{}", found.name)]).as_deref(), Ok(&[found.clone()][..]));
            found.label()
        });
        assert!(labels[0].ends_with(", split [cpu]") && labels[1].ends_with(", fused-subnormals [cpu]"));
        assert!(select(&["cpu:other"]).is_err());
        let split = Arithmetic { fused: false, ..Arithmetic::default() };
        assert_eq!(select_in(&["cpu"], split), select(&["cpu:split"]));
        assert_eq!(select_in(&["cpu", "cpu:fused-subnormals"], split).map(|found| found.len()), Ok(2));
    }

    #[test]
    fn an_arithmetic_without_the_cpu_is_refused() {
        let Some(other) = adapters(&[]).into_iter().find(|adapter| adapter.arithmetic.is_none()) else {
            return;
        };
        let error = select_in(&[other.label()], Arithmetic::default()).unwrap_err();
        let found = matches!(&error, GpuError::NoAdapter { wanted, available }
            if wanted == "cpu:fused" && *available == [other.label()]);
        assert!(found, "{error}");
    }

    #[test]
    fn an_entry_that_says_nothing_fits_no_adapter() {
        if Backend::ALL.iter().any(|backend| backend.is_compiled()) {
            for text in ["", " ", "[", ":"] {
                let available = adapters(&[]).iter().map(Adapter::label).collect();
                let expected = Err(GpuError::NoAdapter { wanted: text.to_owned(), available });
                assert_eq!(select(&[text]), expected);
            }
        }
    }

    #[test]
    fn hardware_comes_before_software() {
        let Some(software) = adapters(&[]).pop() else { return };
        let gpu = Adapter { kind: Kind::Discrete, name: "a GPU".to_owned(), ..software.clone() };
        let software = Adapter { kind: Kind::Cpu, ..software };
        let gl = Adapter { backend: Backend::Gl, ..software.clone() };
        assert_eq!(best(vec![software.clone(), gpu.clone(), gl.clone()]), Ok(vec![gpu]));
        let cpu = Adapter { backend: Backend::Cpu, ..software.clone() };
        let software = Adapter { backend: Backend::Vulkan, ..software };
        assert_eq!(best(vec![gl.clone(), software.clone(), cpu.clone()]), Ok(vec![cpu]));
        assert_eq!(best(vec![gl, software.clone()]), Ok(vec![software]));
        assert!(matches!(best(Vec::new()), Err(GpuError::NoAdapter { .. })));
    }
}
