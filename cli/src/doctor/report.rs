//! The report: as text, part by part, and as one JSON object.

use super::{
    arithmetic::Findings,
    compile::{Compiled, Refused},
    device::Memory,
    endurance::{Came, Submissions},
    run::Ran,
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, fmt, time::Duration};

/// All that was found.
pub struct Report {
    pub device: Value,
    pub compiled: Compiled,
    pub ran: Ran,
    pub arithmetic: Findings,
    pub memory: Memory,
    pub submissions: Submissions,
}

impl Report {
    /// One line: what passed, or what did not.
    ///
    /// # Errors
    /// The numbers of failures of each kind.
    pub fn verdict(&self) -> Result<String, String> {
        let Self { compiled, ran, arithmetic, memory, submissions, .. } = self;
        let (variants, cases) = (compiled.tried(), ran.tried());
        let failures = [
            (
                compiled.failures.len(),
                format!(
                    "kernel variants that do not compile: {} of {variants}",
                    compiled.failures.len()
                ),
            ),
            (ran.failures.len(), format!("cases that disagree: {} of {cases}", ran.failures.len())),
            (
                arithmetic.unsound(),
                format!(
                    "arithmetic probes whose results kernels cannot use: {}",
                    arithmetic.unsound()
                ),
            ),
            (usize::from(memory.tried.is_err()), "the memory test failed".into()),
            (
                submissions.failures(),
                match submissions.error {
                    Some(_) => "submissions cannot be timed".into(),
                    None => format!(
                        "failed submissions: {} of {}",
                        submissions.failures(),
                        submissions.all.len()
                    ),
                },
            ),
        ];
        let failed: Vec<_> =
            failures.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
        match failed.is_empty() {
            true => Ok(format!("all {variants} kernel variants compile, all {cases} cases agree")),
            false => Err(failed.join("; ")),
        }
    }

    pub fn object(&self) -> Value {
        let verdict = self.verdict();
        json!({
            "device": self.device, "kernels": self.compiled.object(), "cases": self.ran.object(), "arithmetic": self.arithmetic.object(),
            "memory": self.memory.object(), "submissions": self.submissions.object(),
            "passed": verdict.is_ok(), "verdict": verdict.unwrap_or_else(|failures| failures),
        })
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

impl Refused {
    fn object(&self) -> Value {
        json!({ "kernel": self.kernel, "language": self.language, "variant": self.variant, "why": self.why })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, language, variant, why } = self;
        let variant = if variant.is_empty() { String::new() } else { format!(", {variant}") };
        write!(f, "FAILED {kernel} ({language}{variant}):\n{}", why.trim_end())
    }
}

impl Compiled {
    fn object(&self) -> Value {
        let list = |refused: &[Refused]| refused.iter().map(Refused::object).collect::<Vec<_>>();
        json!({
            "kernels": self.kernels, "variants": self.tried(), "compiled": self.sound, "seconds": self.time.as_secs_f64(),
            "failures": list(&self.failures), "not_for_this_device": list(&self.not_here),
        })
    }
}

impl fmt::Display for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut languages: BTreeMap<&str, [usize; 3]> = self
            .sound
            .iter()
            .map(|(language, &count)| (language.as_str(), [count, 0, 0]))
            .collect();
        for (at, refused) in [(1, &self.failures), (2, &self.not_here)] {
            refused
                .iter()
                .for_each(|refused| languages.entry(&refused.language).or_default()[at] += 1);
        }
        writeln!(
            f,
            "\n{} kernels, {} variants, in {}",
            self.kernels,
            self.tried(),
            seconds(self.time)
        )?;
        writeln!(
            f,
            "  {:<10}{:>10}{:>10}{:>22}",
            "language", "compile", "fail", "not for this device"
        )?;
        for (language, [sound, failed, not_here]) in languages {
            writeln!(f, "  {language:<10}{sound:>10}{failed:>10}{not_here:>22}")?;
        }
        self.failures.iter().try_for_each(|failure| writeln!(f, "{failure}"))
    }
}

impl Ran {
    fn object(&self) -> Value {
        let failure = |failure: &super::run::Failure| json!({ "case": failure.case, "language": failure.language, "error": failure.error });
        json!({
            "cases": self.tried(), "agree": self.agree, "languages": self.languages, "seconds": self.time.as_secs_f64(),
            "failures": self.failures.iter().map(failure).collect::<Vec<_>>(), "not_for_this_device": self.not_here,
        })
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\n{} of {} cases agree with the CPU, in {}",
            self.agree,
            self.tried(),
            self.languages.join(" and ")
        )?;
        let without = if self.not_here.is_empty() {
            String::new()
        } else {
            format!("; {} need f16, which this device does not have", self.not_here.len())
        };
        writeln!(f, ", in {}{without}", seconds(self.time))?;
        self.failures.iter().try_for_each(|failure| {
            writeln!(f, "FAILED {} ({}): {}", failure.case, failure.language, failure.error)
        })
    }
}

impl Findings {
    fn object(&self) -> Value {
        let row = |row: &super::arithmetic::Row| {
            let findings = row.findings.iter().map(|(language, finding)| {
                (
                    language.clone(),
                    json!({ "finding": finding.text, "as_kernels_rely_on": finding.sound }),
                )
            });
            json!({ "probe": row.probe, "findings": findings.collect::<Map<_, _>>() })
        };
        json!({ "probes": self.rows.iter().map(row).collect::<Vec<_>>(), "errors": self.errors })
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let languages: Vec<&str> = self
            .rows
            .first()
            .map(|row| row.findings.keys().map(String::as_str).collect())
            .unwrap_or_default();
        let column = |text: &str, width: usize| {
            format!("{text}{}", " ".repeat(width.saturating_sub(text.chars().count())))
        };
        let line = |probe: &str, cells: Vec<String>| {
            let cells: String = cells.iter().map(|cell| column(cell, 30)).collect();
            format!("  {}{}", column(probe, 42), cells).trim_end().to_owned()
        };
        writeln!(
            f,
            "\n{}",
            line("arithmetic", languages.iter().map(|language| (*language).to_owned()).collect())
                .trim_start()
        )?;
        for row in &self.rows {
            let cell = |language: &&str| match row.findings.get(*language) {
                Some(finding) if finding.sound => finding.text.clone(),
                Some(finding) => format!("FAILED: {}", finding.text),
                None => "-".into(),
            };
            writeln!(f, "{}", line(row.probe, languages.iter().map(cell).collect()))?;
        }
        self.errors
            .iter()
            .try_for_each(|(language, error)| writeln!(f, "FAILED in {language}: {error}"))
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Submissions {
    fn object(&self) -> Value {
        let submission = |submission: &super::endurance::Submission| {
            let (took, error) = match &submission.came {
                Came::Right(took) => (Some(milliseconds(*took)), None),
                Came::Wrong(count) => {
                    (None, Some(format!("{count} wrong numbers, without an error")))
                }
                Came::Failed(error) => (None, Some(error.clone())),
            };
            json!({
                "asked_ms": milliseconds(submission.asked), "dispatches": submission.dispatches, "took_ms": took, "error": error,
                "as_expected": submission.sound(),
            })
        };
        json!({ "submissions": self.all.iter().map(submission).collect::<Vec<_>>(), "error": self.error })
    }
}

impl fmt::Display for Submissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for submission in &self.all {
            write!(
                f,
                "submission of about {} ms, {} dispatches: ",
                milliseconds(submission.asked),
                submission.dispatches
            )?;
            match &submission.came {
                Came::Right(took) => writeln!(f, "correct, after {:.0} ms", milliseconds(*took))?,
                Came::Wrong(count) => {
                    writeln!(f, "FAILED: {count} wrong numbers, without an error")?
                }
                Came::Failed(error) if submission.sound() => {
                    writeln!(f, "ended with an error: {error}")?
                }
                Came::Failed(error) => writeln!(f, "FAILED: {error}")?,
            }
        }
        self.error
            .iter()
            .try_for_each(|error| writeln!(f, "FAILED: submissions cannot be timed: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{arithmetic, endurance::Submission, run::Failure};
    use super::*;

    /// The report of a sound device.
    fn report() -> Report {
        let finding = |sound| arithmetic::Finding { text: "as IEEE 754".into(), sound };
        let row = arithmetic::Row {
            probe: "a + b",
            findings: [("WGSL".to_owned(), finding(true))].into(),
        };
        Report {
            device: json!({}),
            compiled: Compiled { sound: [("WGSL".to_owned(), 3)].into(), ..Compiled::default() },
            ran: Ran { agree: 5, ..Ran::default() },
            arithmetic: Findings { rows: vec![row], ..Findings::default() },
            memory: Memory::tried(Ok(1)),
            submissions: Submissions { all: vec![submission(100, right())], error: None },
        }
    }

    fn submission(asked: u64, came: Came) -> Submission {
        Submission { asked: Duration::from_millis(asked), dispatches: 1, came }
    }

    fn right() -> Came {
        Came::Right(Duration::from_millis(1))
    }

    #[test]
    fn sound_devices_pass() {
        let sound = "all 3 kernel variants compile, all 5 cases agree";
        assert_eq!(report().verdict().as_deref(), Ok(sound));
        let mut report = report();
        // Systems may end long submissions with an error, and devices lack what variants need.
        report.submissions.all.push(submission(500, Came::Failed("too long".into())));
        report.compiled.not_here.push(refused());
        report.ran.not_here.push("in f16");
        assert_eq!(report.verdict().as_deref(), Ok(sound));
        let object = report.object();
        assert_eq!((&object["passed"], &object["verdict"]), (&json!(true), &json!(sound)));
    }

    fn refused() -> Refused {
        let [language, variant, why] = ["WGSL", "", "no f16"].map(String::from);
        Refused { kernel: "add", language, variant, why }
    }

    #[test]
    fn verdicts_count_failures_of_each_kind() {
        type Fault = (fn(&mut Report), &'static str);
        let faults: [Fault; 8] = [
            (
                |it| it.compiled.failures.push(refused()),
                "kernel variants that do not compile: 1 of 4",
            ),
            (
                |it| {
                    let [language, error] = ["WGSL", "differs"].map(String::from);
                    it.ran.failures.push(Failure { case: "add", language, error });
                },
                "cases that disagree: 1 of 6",
            ),
            (
                |it| {
                    let row = &mut it.arithmetic.rows[0];
                    row.findings.values_mut().for_each(|finding| finding.sound = false);
                },
                "arithmetic probes whose results kernels cannot use: 1",
            ),
            (
                |it| drop(it.arithmetic.errors.insert("MSL".into(), "no compiler".into())),
                "arithmetic probes whose results kernels cannot use: 1",
            ),
            (|it| it.memory = Memory::tried(Err("lost".into())), "the memory test failed"),
            (
                |it| it.submissions.all.push(submission(500, Came::Wrong(7))),
                "failed submissions: 1 of 2",
            ),
            (
                |it| it.submissions.all.push(submission(100, Came::Failed("lost".into()))),
                "failed submissions: 1 of 2",
            ),
            (
                |it| it.submissions = Submissions { all: Vec::new(), error: Some("lost".into()) },
                "submissions cannot be timed",
            ),
        ];
        for (plant, expected) in faults {
            let mut report = report();
            plant(&mut report);
            assert_eq!(report.verdict(), Err(expected.to_owned()));
            let object = report.object();
            assert_eq!((&object["passed"], &object["verdict"]), (&json!(false), &json!(expected)));
        }
        let mut all = report();
        faults.iter().take(2).for_each(|(plant, _)| plant(&mut all));
        let expected = format!("{}; {}", faults[0].1, faults[1].1);
        assert_eq!(all.verdict(), Err(expected));
    }
}
