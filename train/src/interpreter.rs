//! One interpreter of the steps of a layer forward, and one backward. Each step's gradient stands
//! beside the step in `steps.rs`.

use crate::{
    error::Result,
    lesson::{Goal, Lesson},
    network::{Batch, IGNORED, Network, Value},
    plan::Step,
    steps::{Saved, first},
};
use bitnet_wgpu::{
    Encoder, Out, Tensor,
    tensor::{self, Axes, LinearGradients},
    transformer::RmsNorm,
};

/// What the way back through a model needs of the way there.
struct Trace {
    layers: Vec<Vec<Saved>>,
    /// The residual stream after the last layer.
    x: Tensor<f32>,
    normed: Tensor<f32>,
}

impl Network {
    /// Returns the loss of every token, in nats, `[batch · tokens]`; 0 where it is not learned. With
    /// a lesson, it is what a student's gradients are of.
    ///
    /// # Errors
    /// What the ops report.
    pub fn losses(&self, batch: &Batch, lesson: Option<&Lesson>) -> Result<Tensor<f32>> {
        let states = self.states(batch)?;
        let (mut encoder, head) = (self.context.encoder("loss"), self.float(self.plan.head)?);
        let e = &mut encoder;
        let losses = match lesson {
            Some(lesson) => {
                lesson.loss(&states, head, &batch.targets).ignore_index(IGNORED).forward(e)?.loss
            }
            None => {
                let op = tensor::linear_cross_entropy(&states, head, &batch.targets);
                op.ignore_index(IGNORED).forward(e)?.loss
            }
        };
        let _ = encoder.submit()?;
        Ok(losses)
    }

    /// Returns what goes into the LM head, `[batch · tokens, hidden]`. Nothing is kept for gradients.
    ///
    /// # Errors
    /// What the ops report.
    pub fn states(&self, batch: &Batch) -> Result<Tensor<f32>> {
        let mut encoder = self.context.encoder("forward");
        let normed = self.forward(&mut encoder, batch, drop)?.1;
        let _ = encoder.submit()?;
        Ok(normed)
    }

    /// Adds the gradients of a goal to `gradients`, and the sum of the losses of all tokens to
    /// `sum`, `[]`.
    ///
    /// # Errors
    /// What the ops report.
    pub fn learn(
        &self,
        batch: &Batch,
        goal: Goal<'_>,
        gradients: &[Tensor<f32>],
        sum: &Tensor<f32>,
    ) -> Result<()> {
        let mut encoder = self.context.encoder("forward");
        let (e, mut layers) = (&mut encoder, Vec::new());
        let (x, normed) = self.forward(e, batch, |saved| layers.push(saved))?;
        let trace = Trace { layers, x, normed };
        let mut dx = self.loss_backward(e, &trace, batch, goal, gradients, sum)?;
        flush(e, "backward")?;
        for (steps, saved) in self.plan.layers.iter().zip(trace.layers).rev() {
            dx = self.layer_backward(e, steps, saved, dx, batch, gradients)?;
            flush(e, "backward")?;
        }
        if let Some(gradient) = self.gradient(gradients, self.plan.embedding) {
            let embedding = self.float(self.plan.embedding)?;
            let dtable = tensor::gather(embedding, &batch.ids).backward(e, &dx)?;
            tensor::add(gradient, &dtable).forward_into(e, gradient)?;
        }
        let _ = encoder.submit()?;
        Ok(())
    }

    /// Gives what each layer saves to `keep`. Returns the residual stream after the last layer, and
    /// what the final norm makes of it.
    fn forward(
        &self,
        e: &mut Encoder,
        batch: &Batch,
        mut keep: impl FnMut(Vec<Saved>),
    ) -> Result<(Tensor<f32>, Tensor<f32>)> {
        let mut x = tensor::gather(self.float(self.plan.embedding)?, &batch.ids).forward(e)?;
        for steps in &self.plan.layers {
            let saved;
            (x, saved) = self.layer(e, steps, x, batch)?;
            keep(saved);
            flush(e, "forward")?;
        }
        let normed = RmsNorm::new(self.float(self.plan.norm)?, self.eps).forward(e, &x)?;
        Ok((x, normed))
    }

    /// Records the loss, and the gradients of LM head and final norm. Returns that of the residual
    /// stream.
    fn loss_backward(
        &self,
        e: &mut Encoder,
        trace: &Trace,
        batch: &Batch,
        goal: Goal<'_>,
        gradients: &[Tensor<f32>],
        sum: &Tensor<f32>,
    ) -> Result<Tensor<f32>> {
        let (head, states, targets) = (self.plan.head, &trace.normed, &batch.targets);
        let (weights, gradient) = (self.float(head)?, self.gradient(gradients, head));
        let dloss = Tensor::uninit(&self.context, targets.shape())?;
        tensor::fill(goal.factor).forward_into(e, &dloss)?;
        let dnormed = Tensor::uninit(&self.context, states.shape())?;
        let (dx, sum) = (Out::set(&dnormed), Out::add(sum));
        if let Some(lesson) = goal.lesson {
            let op = lesson.loss(states, weights, targets).ignore_index(IGNORED);
            let made = op.forward(e)?;
            tensor::sum(&made.loss, Axes::ALL).forward_into(e, sum)?;
            op.backward_into(e, &made.lse, &dloss, dx, gradient.map(Out::add))?;
        } else {
            let op = tensor::linear_cross_entropy(states, weights, targets).ignore_index(IGNORED);
            let made = op.forward(e)?;
            tensor::sum(&made.loss, Axes::ALL).forward_into(e, sum)?;
            match gradient {
                Some(gradient) => {
                    let outs = LinearGradients { x: dx, w: Out::add(gradient) };
                    op.backward_into(e, &made.lse, &dloss, outs)?;
                }
                None => op.backward_x_into(e, &made.lse, &dloss, dx)?,
            }
        }
        self.norm_backward(e, self.plan.norm, &trace.x, &dnormed, gradients)
    }

    /// Executes the steps of a layer.
    fn layer(
        &self,
        e: &mut Encoder,
        steps: &[Step],
        mut x: Tensor<f32>,
        batch: &Batch,
    ) -> Result<(Tensor<f32>, Vec<Saved>)> {
        // What the last step gives; none where the next one reads the residual stream.
        let mut value: Option<Value> = None;
        let mut all = Vec::with_capacity(steps.len());
        for step in steps {
            let input = value.take().unwrap_or_else(|| vec![x.clone()]);
            let (next, saved) = match step {
                Step::Norm(gain) => self.norm(e, *gain, input)?,
                Step::Linear(weights) => {
                    let (value, saved) = self.linear(e, weights, first(input))?;
                    (value, Saved::Linear(saved))
                }
                Step::HeadNorms { queries, keys } => {
                    self.head_norms(e, (*queries, *keys), input)?
                }
                Step::Attention => self.attention(e, input, batch)?,
                Step::Gate => self.gate(e, input)?,
                Step::Add => {
                    x = tensor::add(&x, &input[0]).forward(e)?;
                    all.push(Saved::Add);
                    continue;
                }
            };
            value = Some(next);
            all.push(saved);
        }
        Ok((x, all))
    }

    /// Executes the gradients of the steps of a layer, from the last one to the first. `dx` is the
    /// gradient of the residual stream after the layer; returns that before it.
    fn layer_backward(
        &self,
        e: &mut Encoder,
        steps: &[Step],
        saved: Vec<Saved>,
        mut dx: Tensor<f32>,
        batch: &Batch,
        gradients: &[Tensor<f32>],
    ) -> Result<Tensor<f32>> {
        let mut value: Value = Vec::new();
        for (i, (step, saved)) in steps.iter().zip(saved).enumerate().rev() {
            value = match (step, saved) {
                (Step::Norm(gain), Saved::Norm { x }) => {
                    vec![self.norm_backward(e, *gain, &x, &value[0], gradients)?]
                }
                (Step::Linear(parts), Saved::Linear(saved)) => {
                    vec![self.linear_backward(e, parts, &saved, &value, gradients)?]
                }
                (Step::HeadNorms { queries, keys }, Saved::HeadNorms { queries: q, keys: k }) => {
                    self.head_norms_backward(e, (*queries, *keys), (&q, &k), value, gradients)?
                }
                (Step::Attention, Saved::Attention(saved)) => {
                    self.attention_backward(e, &saved, &value[0], batch)?
                }
                (Step::Gate, Saved::Gate { gate, up }) => {
                    self.gate_backward(e, (&gate, &up), &value[0])?
                }
                _ => vec![dx.clone()],
            };
            let reads_stream = i == 0 || matches!(steps[i - 1], Step::Add);
            if reads_stream {
                dx = tensor::add(&dx, &value[0]).forward(e)?;
            }
        }
        Ok(dx)
    }
}

/// Submits what is recorded, so that its temporary tensors are free for what follows.
fn flush(e: &mut Encoder, label: &'static str) -> Result<()> {
    let next = e.context().encoder(label);
    let _ = std::mem::replace(e, next).submit()?;
    Ok(())
}
