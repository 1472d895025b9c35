//! The losses of a run as a picture.

use std::fmt::Write as _;

/// Width and height of the picture, and what is around the curves, in pixels.
const SIZE: (f64, f64) = (720.0, 400.0);
const MARGIN: f64 = 48.0;
/// The most points of a curve: more are averaged.
const MOST_POINTS: usize = 600;

/// Returns an SVG of losses by steps: those of steps, and those of held-out windows.
pub fn svg(steps: &[(u64, f64)], held_out: &[(u64, f64)]) -> String {
    let finite = |points: &[(u64, f64)]| -> Vec<(f64, f64)> {
        let points = points.iter().filter(|(_, loss)| loss.is_finite());
        points.map(|&(step, loss)| (step as f64, loss)).collect()
    };
    let (steps, held_out) = (averaged(&finite(steps)), finite(held_out));
    let all = || steps.iter().chain(&held_out);
    let last = all().map(|point| point.0).fold(1.0, f64::max);
    let low = all().map(|point| point.1).fold(f64::INFINITY, f64::min).min(1e9);
    let high = all().map(|point| point.1).fold(low, f64::max);
    let range = (high - low).max(1e-9);
    let place = |&(step, loss): &(f64, f64)| {
        let x = MARGIN + step / last * (SIZE.0 - 2.0 * MARGIN);
        (x, SIZE.1 - MARGIN - (loss - low) / range * (SIZE.1 - 2.0 * MARGIN))
    };
    let (width, height) = SIZE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (points, color) in [(&steps, "#1f77b4"), (&held_out, "#d62728")] {
        let points: String = points.iter().map(place).fold(String::new(), |mut text, (x, y)| {
            let _ = write!(text, "{x:.1},{y:.1} ");
            text
        });
        let points = points.trim_end();
        let _ = writeln!(svg, "<polyline fill=\"none\" stroke=\"{color}\" points=\"{points}\"/>");
    }
    let texts = [
        (4.0, MARGIN, format!("{high:.3}")),
        (4.0, height - MARGIN, format!("{low:.3}")),
        (width - MARGIN - 80.0, height - 16.0, format!("step {last}")),
        (MARGIN, 20.0, "loss of steps (blue) and of held-out text (red), in nats".to_owned()),
    ];
    for (x, y, text) in texts {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\">{text}</text>");
    }
    svg + "</svg>\n"
}

/// Means of neighbors, so that there are not too many points.
fn averaged(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mean = |points: &[(f64, f64)]| {
        let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (sum.0 / points.len() as f64, sum.1 / points.len() as f64)
    };
    points.chunks(points.len().div_ceil(MOST_POINTS).max(1)).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_within_the_picture() {
        let steps: Vec<(u64, f64)> = (1..=5000).map(|i| (i, 8.0 / i as f64)).collect();
        let svg = svg(&[&steps[..], &[(5001, f64::NAN)]].concat(), &[(100, 3.0), (5000, 2.0)]);
        let curves: Vec<&str> = svg.lines().filter(|line| line.starts_with("<polyline")).collect();
        assert_eq!(curves.len(), 2);
        for (curve, most) in curves.into_iter().zip([MOST_POINTS, 2]) {
            let points = curve.split("points=\"").nth(1).unwrap().trim_end_matches("\"/>");
            let points: Vec<(f64, f64)> = points
                .split(' ')
                .map(|point| point.split_once(',').unwrap())
                .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
                .collect();
            assert!(points.len() <= most && points.len() * 2 > most, "{}", points.len());
            assert!(
                points
                    .iter()
                    .all(|&(x, y)| (0.0..SIZE.0).contains(&x) && (0.0..SIZE.1).contains(&y))
            );
            assert!(
                points[0].0 < points[points.len() - 1].0
                    && points[0].1 < points[points.len() - 1].1
            );
        }
        assert!(super::svg(&[], &[]).ends_with("</svg>\n"));
    }
}
