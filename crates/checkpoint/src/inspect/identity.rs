//! The identity of a checkpoint's run as lines for a person. What `trainer.json` says of it is the trainer's
//! matter, so nothing here fails: what is not understood is not shown.

use serde_json::Value;

/// The digits of a hash that are shown.
const DIGITS: usize = 12;

/// Returns the identity with its parts, what it does not cover, and the runs that the run was made of.
pub fn lines(trainer: &Value) -> Vec<String> {
    let identity = &trainer["sections"]["identity"]["value"];
    let Some(parts) = identity.as_object() else { return Vec::new() };
    let mut lines = vec![format!("identity  {}", short(&identity["sha256"]).unwrap_or("not known yet"))];
    for (name, part) in parts {
        let hash = if name == "data" { &part["hashed"]["sha256"] } else { &part["sha256"] };
        if let Some(hash) = short(hash) {
            lines.push(format!("  {name:10} {hash}"));
        } else if name == "data" {
            lines.push(format!("  {name:10} {part}"));
        }
    }
    for what in identity["not_covered"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        lines.push(format!("  not covered: {what}"));
    }
    for ancestor in identity["ancestors"].as_array().into_iter().flatten() {
        let from = short(&ancestor["identity"]).unwrap_or("an unknown run");
        let differs: Vec<&str> =
            ancestor["differs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        lines.push(format!("  forced at step {} from {from}: {}", ancestor["step"], differs.join("; ")));
    }
    lines
}

/// Returns `trainer.json` with the number of the hashes of blocks instead of all of them.
pub fn shortened(trainer: &Value) -> Value {
    let mut trainer = trainer.clone();
    let blocks = trainer.pointer_mut("/sections/identity/value/data/hashed/blocks");
    if let Some((count, blocks)) = blocks.and_then(|blocks| Some((blocks.as_array()?.len(), blocks))) {
        *blocks = format!("{count} hashes").into();
    }
    trainer
}

fn short(hash: &Value) -> Option<&str> {
    hash.as_str()?.get(..DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_identity_is_shown_with_its_parts_and_its_past() {
        let hash = |digit: &str| digit.repeat(64);
        let value = json!({
            "sha256": hash("a"),
            "model": { "sha256": hash("b"), "entries": [] },
            "data": { "hashed": { "sha256": hash("c"), "blocks": ["1", "2"] } },
            "not_covered": ["the code of map 'noise'"],
            "ancestors": [{ "identity": null, "step": 7, "differs": ["the lr", "the seed"] }],
        });
        let trainer = json!({ "sections": { "identity": { "version": 1, "value": value } } });
        let expected = [
            "identity  aaaaaaaaaaaa",
            "  data       cccccccccccc",
            "  model      bbbbbbbbbbbb",
            "  not covered: the code of map 'noise'",
            "  forced at step 7 from an unknown run: the lr; the seed",
        ];
        assert_eq!(lines(&trainer), expected);
        let short = shortened(&trainer);
        assert_eq!(short["sections"]["identity"]["value"]["data"]["hashed"]["blocks"], "2 hashes");
        let pending =
            json!({ "sections": { "identity": { "value": { "sha256": null, "data": "not_yet_hashed" } } } });
        assert_eq!(lines(&pending), ["identity  not known yet", "  data       \"not_yet_hashed\""]);
        for broken in [
            json!(null),
            json!({ "sections": 7 }),
            json!({ "sections": { "identity": { "value": {"ancestors": 3, "x": [] } } } }),
        ] {
            assert!(lines(&broken).len() <= 1);
            assert_eq!(shortened(&broken), broken);
        }
    }
}
