//! `bitnet embed`

use crate::{TALES, answers, fails, succeeds};
use serde_json::Value;

#[test]
fn embed_prints_a_vector_a_line() {
    let lines = |text: &str| -> Vec<Value> {
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    };
    let (bear, rain) = ("The bear ate honey.", "It rained all day.");
    let given = lines(&succeeds(&["embed", TALES, bear, rain, "--cpu"]));
    assert_eq!((given.len(), &given[1]["index"]), (2, &Value::from(1)));
    let vector = |line: &Value| -> Vec<f64> {
        line["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let length = vector(&given[0]).iter().map(|x| x * x).sum::<f64>();
    assert_eq!(vector(&given[0]).len(), 512);
    approx::assert_abs_diff_eq!(length, 1.0, epsilon = 1e-5);
    assert_eq!(lines(&answers(&["embed", TALES, "--cpu"], &format!("{bear}\n{rain}\n"))), given);
    let blank = lines(&answers(&["embed", TALES, "--cpu"], &format!("{bear}\n \n\n{rain}\n")));
    assert_eq!((&blank[0], blank.len(), &blank[1]["index"]), (&given[0], 2, &Value::from(3)));
    assert_eq!(blank[1]["embedding"], given[1]["embedding"]);
    let long =
        lines(&succeeds(&["embed", TALES, rain, "--cpu", "--no-normalize", "--pooling", "mean"]));
    assert!(
        vector(&long[0]).iter().map(|x| x * x).sum::<f64>() > 1.5
            && long[0]["tokens"] == given[1]["tokens"]
    );
    let ended = lines(&succeeds(&["embed", TALES, rain, "--cpu", "--add-eos", "true"]));
    assert_eq!(ended[0]["tokens"].as_u64(), given[1]["tokens"].as_u64().map(|tokens| tokens + 1));
    fails(&["embed", TALES, bear, "", "--cpu"], "text 1 is empty");
    fails(&["embed", TALES, &"word ".repeat(600), "--cpu"], "there is room for 512");
    fails(&["embed", TALES, bear, "--pooling", "max"], "max");
}
