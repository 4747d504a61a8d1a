//! A report for a person, as Markdown, and the table of all reports that came in.

use std::fmt::Write as _;
use std::fs;
use std::io::{Write, stdout};
use std::path::Path;

use serde_json::Value;
use unisono::checkpoint::write_whole;
use unisono_examples::{Error, Model};

use super::parts::{Group, Report};
use super::process::Ended;
use super::verdict;

/// Writes report.md. Returns the verdict's lines.
pub fn write(report: &Report) -> Result<String, Error> {
    report.save()?;
    let verdict = verdict_lines(report);
    let sections = [
        format!("# {}\n\n{verdict}", report.label),
        machine(report),
        units(report),
        states(report),
        ceilings(report),
        products(report),
        steps(report),
        parts(report),
        failures(report),
        kernels(report),
    ];
    let text =
        sections.iter().filter(|text| !text.is_empty()).map(String::as_str).collect::<Vec<_>>().join("\n");
    let path = report.dir.join("report.md");
    write_whole(path, &[text.as_bytes()])?;
    Ok(verdict)
}

/// Returns a table of Markdown.
fn rows(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|&name| name.to_owned()).collect();
    let rule = vec!["---".to_owned(); head.len()];
    let cell = |text: String| text.replace('|', "\\|");
    let body = rows.into_iter().map(|row| line(&row.into_iter().map(cell).collect::<Vec<_>>()));
    line(&head) + &line(&rule) + &body.collect::<String>()
}

/// Returns a number with three digits, or a dash.
fn number(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if number >= 100.0 => format!("{number:.0}"),
        Some(number) if number >= 10.0 => format!("{number:.1}"),
        Some(number) if number >= 1.0 => format!("{number:.2}"),
        Some(number) => format!("{number:.3}"),
        None => "-".to_owned(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| if value.is_null() { "-".into() } else { value.to_string() }, str::to_owned)
}

fn verdict_lines(report: &Report) -> String {
    let verdict = verdict::of(report);
    let list = |value: &Value| {
        let names = value.as_array().into_iter().flatten().map(text);
        names.collect::<Vec<_>>().join(", ")
    };
    let right = match (list(&verdict["failed"]), list(&verdict["unchecked"])) {
        (failed, _) if !failed.is_empty() => format!("**Failed**: {failed}."),
        (_, unchecked) if !unchecked.is_empty() => {
            format!("**Not checked**: no part failed, but whether results are correct takes {unchecked}.")
        }
        _ => "**Right**: no part failed.".into(),
    };
    let same = list(&verdict["same_as"]);
    let same = if same.is_empty() { "of no CPU".to_owned() } else { format!("that of {same}") };
    let class = format!("{} {}", text(&verdict["class"]["rounding"]), text(&verdict["class"]["digest"]));
    let mut lines = format!("- {right}\n- Numeric class `{class}`: {same}.\n");
    if let (Some(product), Some(fma)) =
        (verdict["f32_tflop_per_s"].as_f64(), verdict["fma_tflop_per_s"].as_f64())
    {
        let copy = number(&verdict["copy_gb_per_s"]);
        let part = format!(
            ", {:.0} % of the {} that multiply-adds in registers do",
            100.0 * product / fma,
            number(&fma.into())
        );
        // On the CPU products are native code, and multiply-adds of a kernel are not.
        let (product, part) = (number(&product.into()), if report.is_cpu() { "" } else { &part });
        let _ = writeln!(
            lines,
            "- The fastest f32 product does {product} TFLOP/s{part}. A copy moves {copy} GB/s."
        );
    }
    let left_out = list(&verdict["left_out"]);
    if !left_out.is_empty() {
        let _ = writeln!(lines, "- Left out: {left_out}.");
    }
    lines
}

fn machine(report: &Report) -> String {
    let facts = &report.facts["machine"];
    let (adapter, limits, system) = (&facts["adapter"], &facts["limits"], &facts["system"]);
    let mut all = vec![
        ("driver", text(&adapter["driver"])),
        ("kind, backend", format!("{}, {}", text(&adapter["kind"]), text(&adapter["backend"]))),
        ("vendor, device", format!("{}, {}", text(&adapter["vendor"]), text(&adapter["device"]))),
        ("16-bit floats", text(&facts["features"]["f16"])),
        (
            "largest buffer, binding (bytes)",
            format!("{}, {}", limits["buffer_bytes"], limits["binding_bytes"]),
        ),
        ("bindings, invocations", format!("{}, {}", limits["bindings"], limits["invocations"])),
        ("workgroup memory (bytes)", limits["workgroup_bytes"].to_string()),
        ("subgroup", format!("{} to {}", limits["subgroup"][0], limits["subgroup"][1])),
        ("PCI Express", format!("{} x{}", text(&facts["link"]["speed"]), text(&facts["link"]["width"]))),
        ("CPU, cores", format!("{}, {}", text(&system["cpu"]), system["cores"])),
        ("system", format!("{} {}", text(&system["os"]), text(&system["kernel"]))),
    ];
    if let Some(told) = system["nvidia_smi"].as_str() {
        all.push(("nvidia-smi", told.lines().last().unwrap_or_default().to_owned()));
    }
    let all = all.into_iter().map(|(name, value)| vec![name.to_owned(), value]);
    format!("## The machine\n\n{}", rows(&["what", ""], all))
}

fn states(report: &Report) -> String {
    let all = report.states.iter().flat_map(|(program, states)| {
        states.iter().map(move |(how, state)| vec![program.clone(), how.clone(), format!("`{state}`")])
    });
    let cpu = text(report.facts.get("cpu").unwrap_or(&Value::Null));
    format!("## States\n\n\"CPU\" is `--adapter {cpu}`.\n\n{}", rows(&["program", "how", "state"], all))
}

/// Returns the section that compares products in mixed precision with and without the matrix unit.
fn units(report: &Report) -> String {
    let Some(units) = report.facts.get("matrix units").filter(|units| units.is_object()) else {
        return String::new();
    };
    let head = "## Matrix units\n\n";
    if let Some(why) = units["lacks"].as_str() {
        return format!("{head}{why}\n");
    }
    let row = |line: &Value| {
        let numbers = ["mixed_ms", "units_ms", "times"].map(|key| number(&line[key]));
        [vec![text(&line["what"])], numbers.to_vec()].concat()
    };
    let steps = ["step gpt100m mixed", "step gpt100m mixed+units"].map(|name| report.facts.get(name));
    let step = steps[0].zip(steps[1]).and_then(|(plain, unit)| {
        let [plain, unit] = [plain, unit].map(|step| step["step_ms"].as_f64());
        Some(serde_json::json!({ "what": "gpt100m, a step", "mixed_ms": plain?, "units_ms": unit?,
            "times": plain? / unit? }))
    });
    let lines = units["products"].as_array().into_iter().flatten().chain(step.as_ref());
    let columns = ["what", "mixed (ms)", "mixed with units (ms)", "times as fast"];
    let class = text(&units["class"]);
    let cpu = units["cpus_of_the_same_class"][0].as_str().unwrap_or("no CPU");
    let class = format!("The unit's numeric class is `{class}`: that of {cpu}.");
    format!("{head}{class}\n\n{}", rows(&columns, lines.map(row)))
}

fn ceilings(report: &Report) -> String {
    let Some(speed) = report.facts.get("speed").filter(|speed| speed.is_object()) else {
        return String::new();
    };
    let all = [
        ("from one launch to the next that waits for it, recording included (us)", &speed["launch_us"]),
        (
            "from one launch to the next that waits for it, by the device's clock (us)",
            &speed["launch_us_by_its_clock"],
        ),
        ("copy by a kernel, read and written (GB/s)", &speed["copy_gb_per_s"]["kernel"]),
        ("copy by commands, read and written (GB/s)", &speed["copy_gb_per_s"]["command"]),
        ("multiply-adds in registers (TFLOP/s)", &speed["fma_tflop_per_s"]),
        ("filling memory of an upload, host (GB/s)", &speed["upload_gb_per_s"]["filling"]),
        ("an upload in all (GB/s)", &speed["upload_gb_per_s"]["all"]),
        ("a read-back in all (GB/s)", &speed["read_back_gb_per_s"]["all"]),
    ];
    let all = all.map(|(name, value)| vec![name.to_owned(), number(value)]);
    format!("## What the device does at best\n\n{}", rows(&["what", "measured"], all))
}

fn products(report: &Report) -> String {
    let Some(all) = report.facts.get("speed").and_then(|speed| speed["products"].as_array()) else {
        return String::new();
    };
    let fma = report.facts["speed"]["fma_tflop_per_s"].as_f64().unwrap_or(f64::INFINITY);
    let row = |product: &Value| {
        let rate = product["tflop_per_s"].as_f64().unwrap_or_default();
        let part = format!("{:.0} %", 100.0 * rate / fma);
        vec![
            text(&product["kind"]),
            product["n"].to_string(),
            number(&product["ms"]),
            number(&rate.into()),
            part,
        ]
    };
    let head = ["kind", "n x n x n", "ms", "TFLOP/s", "of the multiply-adds"];
    format!("## Products\n\n{}", rows(&head, all.iter().map(row)))
}

/// Returns the steps of all models beside PyTorch's.
fn steps(report: &Report) -> String {
    let ways: Vec<(&String, &Value)> =
        report.facts.iter().filter(|(name, lines)| name.starts_with("torch ") && lines.is_array()).collect();
    let mut head =
        vec!["model", "first step (s)", "step (ms)", "memory promised (MB)", "taken (MB)", "taken, by"];
    head.extend(ways.iter().map(|(name, _)| name.as_str()));
    let row = |model: &Model| {
        let own = report.facts.get(&format!("step {}", model.flag()))?;
        let of = |lines: &Value| {
            let line = lines.as_array()?.iter().find(|line| line["model"] == model.flag())?;
            Some(number(&line["step_ms"]))
        };
        let mut cells = vec![model.flag(), number(&own["first_step_s"]), number(&own["step_ms"])];
        let mega =
            |bytes: &Value| bytes.as_f64().map_or_else(|| "-".into(), |bytes| number(&(bytes / 1e6).into()));
        let taken = &own["taken"];
        cells.extend([mega(&own["promised_bytes"]), mega(&taken["bytes"]), text(&taken["by"])]);
        cells.extend(ways.iter().map(|(_, lines)| of(lines).unwrap_or_else(|| "-".into())));
        Some(cells)
    };
    let all: Vec<Vec<String>> = Model::REPORTED.iter().filter_map(row).collect();
    if all.is_empty() { String::new() } else { format!("## Training steps\n\n{}", rows(&head, all)) }
}

fn parts(report: &Report) -> String {
    let row = |record: &super::parts::Record| {
        let ended = match record.ended {
            Ended::LeftOut => "left out",
            _ if record.is_right => "ok",
            Ended::TimedOut => "**timed out**",
            _ if record.group == Group::Told => "no",
            _ => "**failed**",
        };
        let seconds = format!("{:.1}", record.seconds);
        vec![
            record.name.clone(),
            ended.into(),
            seconds,
            record.last_line.clone(),
            format!("`{}`", record.command),
        ]
    };
    let head = ["part", "", "s", "its last line", "again"];
    format!("## Parts\n\n{}", rows(&head, report.records.iter().map(row)))
}

/// Returns what the parts printed that failed.
fn failures(report: &Report) -> String {
    let failed = report.records.iter().filter(|record| !record.is_right);
    failed.map(|record| format!("## {}\n\n```text\n{}\n```\n", record.name, record.output)).collect()
}

fn kernels(report: &Report) -> String {
    let tables = report.facts.iter().filter(|(name, _)| name.starts_with("kernels "));
    tables.map(|(name, table)| format!("## {name}\n\n```text\n{}\n```\n", text(table))).collect()
}

/// Prints a table of the reports in the folders of a directory.
pub fn table_of_reports(dir: &Path) -> Result<(), Error> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))? {
        let path = entry?.path().join("report.json");
        if path.exists() {
            let report: Value = serde_json::from_slice(&fs::read(&path)?)?;
            let folder = path.parent().and_then(Path::file_name).unwrap_or_default().display().to_string();
            all.push(line(&report, &folder));
        }
    }
    all.sort();
    let head = ["adapter", "driver", "right", "numeric class", "same bits as", "f32 product", "gpt100m step"];
    Ok(write!(stdout(), "{}", rows(&head, all))?)
}

fn line(report: &Value, folder: &str) -> Vec<String> {
    let verdict = &report["verdict"];
    let failed = verdict["failed"].as_array().map_or(0, Vec::len);
    let same = verdict["same_as"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(", ");
    let rate = |value: &Value| match value.as_f64() {
        Some(_) => format!("{} TFLOP/s", number(value)),
        None => "-".to_owned(),
    };
    let step = &report["facts"]["step gpt100m"]["step_ms"];
    vec![
        format!("[{}](gpus/{folder}/report.md)", text(&report["adapter"])),
        text(&report["facts"]["machine"]["adapter"]["driver"]),
        match failed {
            0 if verdict::unchecked(report).is_empty() => "yes".into(),
            0 => "not checked".into(),
            _ => format!("{failed} parts failed"),
        },
        format!("`{} {}`", text(&verdict["class"]["rounding"]), text(&verdict["class"]["digest"])),
        if same.is_empty() { "-".into() } else { same },
        rate(&verdict["f32_tflop_per_s"]),
        if step.is_null() { "-".into() } else { format!("{} ms", number(step)) },
    ]
}
