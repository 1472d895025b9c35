//! `examples/profile`: in its roofline, kernels are where their figures are.

#[path = "../../examples/support/roofline.rs"]
mod plot;

use plot::{Point, svg};

/// What stands between the quotes after `name=`, of all elements that begin so.
fn attributes<'a>(svg: &'a str, element: &str, name: &str) -> Vec<&'a str> {
    let of = |line: &'a str| {
        line.split_once(&format!(" {name}=\"")).unwrap().1.split('"').next().unwrap()
    };
    svg.lines().filter(|line| line.starts_with(element)).map(of).collect()
}

#[test]
fn points_lie_below_the_roofline_by_their_share() {
    let point = |name: &str, operations, bytes, seconds| Point {
        name: name.into(),
        operations,
        bytes,
        seconds,
    };
    // The device reads 1e11 bytes a second and does 1e13 operations: its ridge is at 100 operations
    // a byte.
    let points = [
        point("reads all it can", 1e10, 1e9, 0.01),
        point("reads a tenth", 1e10, 1e9, 0.1),
        point("computes all it can", 1e12, 1e9, 0.1),
        point("a<b & c", 1e12, 1e9, 1.0),
        point("took no time", 1e12, 1e9, 0.0),
        point("above", 1e12, 1e9, 0.01),
    ];
    let svg = svg("a <device>", 1e11, 1e13, &points);
    assert!(
        svg.starts_with("<svg ")
            && svg.ends_with("</svg>\n")
            && svg.contains(">a &lt;device&gt;<")
            && svg.contains(">a&lt;b &amp; c<")
    );
    assert!(
        svg.contains("100.0 GB/s read, 10000 billion") && !svg.contains("took no time"),
        "{svg}"
    );
    let numbers = |name| {
        attributes(&svg, "<circle", name)
            .iter()
            .map(|n| n.parse::<f64>().unwrap())
            .collect::<Vec<_>>()
    };
    let (xs, ys) = (numbers("cx"), numbers("cy"));
    let roof: Vec<f64> = attributes(&svg, "<polyline", "points")[0]
        .split([' ', ','])
        .map(|n| n.parse().unwrap())
        .collect();
    let [x0, y0, x1, y1, x2, y2] = roof[..] else { panic!("{roof:?}") };
    let near = |a: f64, b: f64| (a - b).abs() < 0.3;
    // On the slope, which the second is a decade below, as the fourth is below the flat part; the
    // last is one above it.
    let slope = |x: f64| y0 + (y1 - y0) * (x - x0) / (x1 - x0);
    let decade = ys[1] - ys[0];
    assert!(
        decade > 20.0 && near(ys[0], slope(xs[0])) && near(xs[0], xs[1]),
        "{xs:?} {ys:?} {roof:?}"
    );
    assert!(
        near(y1, y2)
            && near(ys[2], y1)
            && near(ys[3], y1 + decade)
            && near(ys[4], y1 - decade)
            && xs.len() == 5,
        "{ys:?} {roof:?}"
    );
    // 1000 operations a byte are as far to the right of the ridge as 10 are to the left.
    assert!(
        near(xs[2] - x1, x1 - xs[0]) && near(xs[2], xs[3]) && xs[0] < x1 && x1 < x2,
        "{xs:?} {roof:?}"
    );
    // All is within the picture.
    assert!(
        xs.iter().chain(&roof).all(|&n| (0.0..760.0).contains(&n))
            && ys.iter().all(|&y| (0.0..480.0).contains(&y))
    );
}
