//! A roofline as an SVG: what kernels do a second, by how much they do with a byte, below what the
//! device can. Both axes are logarithmic.

use std::fmt::Write;

/// What a kernel did.
pub struct Point {
    pub name: String,
    pub operations: f64,
    pub bytes: f64,
    pub seconds: f64,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 480.0;
/// Where the axes are.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 736.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 432.0;

/// The whole decades that have all of these.
fn decades(values: impl Iterator<Item = f64>) -> [i32; 2] {
    let (least, most) = values
        .map(f64::log10)
        .fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(v), most.max(v)));
    [least.floor() as i32, (most.ceil() as i32).max(least.floor() as i32 + 1)]
}

/// Of a device that reads this many bytes and does this many operations a second. What took no time
/// that a clock could see is left out.
pub fn svg(
    title: &str,
    bytes_per_second: f64,
    operations_per_second: f64,
    points: &[Point],
) -> String {
    let points: Vec<_> =
        points.iter().filter(|p| p.seconds > 0.0 && p.bytes > 0.0 && p.operations > 0.0).collect();
    let ridge = operations_per_second / bytes_per_second;
    let [x0, x1] =
        decades(points.iter().map(|p| p.operations / p.bytes).chain([ridge / 10.0, ridge * 10.0]));
    let low = bytes_per_second * 10f64.powi(x0);
    let [y0, y1] = decades(
        points.iter().map(|p| p.operations / p.seconds).chain([low, operations_per_second]),
    );
    let place = |x: f64, y: f64| {
        let share =
            |v: f64, from: i32, to: i32| (v.log10() - f64::from(from)) / f64::from(to - from);
        (LEFT + (RIGHT - LEFT) * share(x, x0, x1), BOTTOM - (BOTTOM - TOP) * share(y, y0, y1))
    };
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");

    let mut out = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{text}");
    };
    let font = r##"font-family="sans-serif" font-size="12" fill="#1f2328""##;
    line(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {font}>"#
    ));
    line(format_args!(r##"<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>"##));
    line(format_args!(
        r#"<text x="16" y="24" font-size="14" font-weight="600">{}</text>"#,
        escape(title)
    ));
    let (gigabytes, giga) = (bytes_per_second / 1e9, operations_per_second / 1e9);
    let roofs = format!(
        "roofs as measured: {gigabytes:.1} GB/s read, {giga:.0} billion f32 operations a second"
    );
    line(format_args!(r##"<text x="16" y="42" font-size="11" fill="#57606a">{roofs}</text>"##));
    for decade in x0..=x1 {
        let (x, _) = place(10f64.powi(decade), 1.0);
        line(format_args!(r##"<path d="M{x:.1} {TOP}V{BOTTOM}" stroke="#d0d7de"/>"##));
        line(format_args!(
            r#"<text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"#,
            BOTTOM + 18.0,
            10f64.powi(decade)
        ));
    }
    for decade in y0..=y1 {
        let (_, y) = place(1.0, 10f64.powi(decade));
        line(format_args!(r##"<path d="M{LEFT} {y:.1}H{RIGHT}" stroke="#d0d7de"/>"##));
        line(format_args!(
            r#"<text x="{}" y="{:.1}" text-anchor="end">1e{decade}</text>"#,
            LEFT - 8.0,
            y + 4.0
        ));
    }
    line(format_args!(
        r#"<text x="{RIGHT}" y="{}" text-anchor="end">operations a byte</text>"#,
        BOTTOM + 38.0
    ));
    line(format_args!(r#"<text x="16" y="{}">operations a second</text>"#, TOP - 6.0));
    let roof = [
        place(10f64.powi(x0), low),
        place(ridge, operations_per_second),
        place(10f64.powi(x1), operations_per_second),
    ];
    let roof = roof.map(|(x, y)| format!("{x:.1},{y:.1}")).join(" ");
    line(format_args!(
        r##"<polyline points="{roof}" fill="none" stroke="#1f2328" stroke-width="2"/>"##
    ));
    for point in points {
        let (x, y) = place(point.operations / point.bytes, point.operations / point.seconds);
        let (at, anchor) =
            if x < (LEFT + RIGHT) / 2.0 { (x + 8.0, "start") } else { (x - 8.0, "end") };
        line(format_args!(r##"<circle cx="{x:.1}" cy="{y:.1}" r="4" fill="#1f6feb"/>"##));
        line(format_args!(
            r#"<text x="{at:.1}" y="{:.1}" text-anchor="{anchor}">{}</text>"#,
            y + 4.0,
            escape(&point.name)
        ));
    }
    out + "</svg>\n"
}
