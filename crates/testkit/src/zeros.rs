//! A check that an assembled module can be written as HLSL, which DirectX 12 takes.

use std::collections::BTreeMap;

use naga::{Expression, Module};

/// Parses WGSL, and finds types that have zero values by two names, as `Number()` and `vec4<f32>()` with
/// `alias Number = vec4<f32>`. For each name naga's HLSL has a function that returns the zeros, and both
/// functions are called `ZeroValuefloat4`: neither DXC nor FXC compiles that. `Number(0.0)` is no such value.
///
/// # Errors
/// One message for each such type; or the parser's message.
pub fn check(wgsl: &str) -> Result<(), Vec<String>> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|error| vec![error.emit_to_string(wgsl)])?;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for expression in expressions(&module) {
        let Expression::ZeroValue(ty) = *expression else { continue };
        let own = &module.types[ty];
        let names = found.entry(format!("{:?}", own.inner)).or_default();
        let name = own.name.clone().unwrap_or_else(|| "a type without a name".to_owned());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let twice = found.into_iter().filter(|(_, names)| names.len() > 1);
    let messages: Vec<String> =
        twice.map(|(ty, names)| format!("{ty} has zero values by {}", names.join(" and "))).collect();
    if messages.is_empty() { Ok(()) } else { Err(messages) }
}

fn expressions(module: &Module) -> impl Iterator<Item = &Expression> {
    let functions = module.functions.iter().map(|(_, function)| function);
    let entries = module.entry_points.iter().map(|entry| &entry.function);
    functions
        .chain(entries)
        .flat_map(|function| function.expressions.iter().map(|(_, expression)| expression))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_of_a_type_and_of_its_alias_are_found() {
        let module = |first: &str, second: &str| {
            format!(
                "alias Number = vec4<f32>;\nfn a() -> Number {{ return {first}; }}\n\
                 fn b() -> vec4<f32> {{ return {second}; }}"
            )
        };
        for (first, second, is_right) in [
            ("Number()", "vec4<f32>()", false),
            ("Number()", "Number()", true),
            ("vec4<f32>()", "vec4<f32>()", true),
            ("Number(0.0)", "vec4<f32>()", true),
        ] {
            let found = check(&module(first, second));
            assert_eq!(found.is_ok(), is_right, "{first}, {second}: {found:?}");
        }
    }
}
