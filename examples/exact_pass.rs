// The exact pass of GPT-2, written from the definitions in docs/guide/check_your_engine.md alone.
//
//     rustc --edition 2021 -O exact_pass.rs && ./exact_pass FOLDER ID [ID …] > logits.f64
//
// FOLDER has each weight as raw float64 in the file NAME.f64 (tests/parity/model/test_exact.py
// writes them). The output is (tokens, 4096) raw float64 for the bundled model's config.

use std::io::Write;

const LAYERS: usize = 6;
const HEADS: usize = 4;
const C: usize = 256;
const D: usize = C / HEADS;
const BLOCK: usize = 1024; // inputs of one product
const TILE: usize = 64; // keys of one product

/// 2 to the power of k.
fn power(k: i32) -> f64 {
    if k < -1022 { power(-1000) * power(k + 1000) } else { f64::from_bits(((k + 1023) as u64) << 52) }
}

/// The least e with |x| < 2^e, at least -900; 0 for 0.
fn exponent(x: f64) -> i32 {
    if x == 0.0 { 0 } else { (((x.to_bits() >> 52) & 2047) as i32 - 1022).max(-900) }
}

/// A vector as (hi + lo / 2^22) * scale, in integers up to 2^21.
struct Cut { hi: Vec<f64>, lo: Vec<f64>, scale: f64 }

fn cut(v: &[f64]) -> Cut {
    let scale = power(exponent(v.iter().fold(0.0, |most: f64, x| most.max(x.abs()))) - 21);
    let hi: Vec<f64> = v.iter().map(|x| (x / scale).round_ties_even()).collect();
    let rest = v.iter().zip(&hi).map(|(x, hi)| (x / scale - hi) * power(22));
    Cut { lo: rest.map(f64::round_ties_even).collect(), hi, scale }
}

fn product(x: &Cut, w: &Cut) -> f64 {
    let (mut a, mut b) = (0.0, 0.0); // exact integers
    for i in 0..x.hi.len() {
        b += x.hi[i] * w.lo[i] + x.lo[i] * w.hi[i];
        a += x.hi[i] * w.hi[i];
    }
    (b * power(-22) + a) * x.scale * w.scale + 0.0
}

fn sum(v: &[f64]) -> f64 {
    let mut v = v.to_vec();
    while v.len() > 1 {
        let half = v.len().next_power_of_two() / 2;
        for i in half..v.len() { v[i - half] += v[i]; }
        v.truncate(half);
    }
    v[0]
}

fn exp(x: f64) -> f64 {
    if x > 709.0 { return f64::INFINITY; }
    let x = x.max(-746.0);
    let k = (x * (1.0 / f64::from_bits(0x3fe62e42fefa39ef))).round_ties_even(); // ln 2
    let r = (x - k * f64::from_bits(0x3fe62e42fefa2000)) - k * f64::from_bits(0x3d69ef35793c7673);
    let factorial = |n: i32| (2..=n).map(f64::from).product::<f64>();
    let p = (2..=13).rev().fold(0.0, |p, n| r * (1.0 / factorial(n) + p));
    let m = p * r + r;
    let normal = k.max(-1000.0);
    (1.0 + m) * power(normal as i32) * power((k - normal) as i32)
}

fn gelu(x: f64) -> f64 {
    let scale = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
    let u = x * x * (-scale * 0.044715) - scale;
    x / (exp(u * x) + 1.0)
}

fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let centered = |x: &[f64]| { let mean = sum(x) / C as f64; x.iter().map(|x| x - mean).collect::<Vec<f64>>() };
    let c = centered(&centered(x));
    let variance = sum(&c.iter().map(|c| c * c).collect::<Vec<f64>>()) / C as f64;
    let root = (variance + 1e-5).sqrt();
    (0..C).map(|i| c[i] / root * weight[i] + bias[i]).collect()
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let most = scores.iter().fold(f64::NEG_INFINITY, |most, x| most.max(*x));
    let y: Vec<f64> = scores.iter().map(|x| exp(x - most)).collect();
    let total = sum(&y);
    y.iter().map(|y| y / total).collect()
}

/// The output of a linear layer whose weights are cut by output and block.
fn linear(x: &[f64], outputs: &[Vec<Cut>], bias: Option<&[f64]>) -> Vec<f64> {
    let blocks: Vec<Cut> = x.chunks(BLOCK).map(cut).collect();
    let one = |weights: &Vec<Cut>| blocks.iter().zip(weights).fold(0.0, |y, (x, w)| y + product(x, w));
    outputs.iter().enumerate().map(|(o, w)| one(w) + bias.map_or(0.0, |b| b[o])).collect()
}

/// z of one head for the last of some tokens; `qkv` has the rows of c_attn.
fn attend(qkv: &[Vec<f64>], head: usize) -> Vec<f64> {
    let part = |row: &[f64], third: usize| row[third * C + head * D..][..D].to_vec();
    let scale = 1.0 / (D as f64).sqrt();
    let query: Vec<f64> = part(&qkv[qkv.len() - 1], 0).iter().map(|q| q * scale).collect();
    let query = cut(&query);
    let pattern = softmax(&qkv.iter().map(|row| product(&query, &cut(&part(row, 1)))).collect::<Vec<f64>>());
    let mut z = vec![0.0; D];
    for (rows, weights) in qkv.chunks(TILE).zip(pattern.chunks(TILE)) {
        let values: Vec<Cut> = rows.iter().map(|row| cut(&part(row, 2))).collect();
        let weights = cut(&weights.iter().zip(&values).map(|(p, v)| p * v.scale).collect::<Vec<f64>>());
        for d in 0..D {
            let hi = values.iter().map(|v| v.hi[d]).collect();
            let lo = values.iter().map(|v| v.lo[d]).collect();
            z[d] += product(&weights, &Cut { hi, lo, scale: 1.0 });
        }
    }
    z
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let load = |name: String| -> Vec<f64> {
        let bytes = std::fs::read(format!("{}/{name}.f64", arguments[1])).expect("the weights");
        bytes.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let layer = |x: &[Vec<f64>], name: String| -> Vec<Vec<f64>> { // a linear layer, stored (in, out)
        let (weight, bias) = (load(format!("{name}.weight")), load(format!("{name}.bias")));
        let column = |o: usize| weight.iter().skip(o).step_by(bias.len()).copied().collect::<Vec<f64>>();
        let outputs: Vec<Vec<Cut>> = (0..bias.len()).map(|o| column(o).chunks(BLOCK).map(cut).collect()).collect();
        x.iter().map(|x| linear(x, &outputs, Some(&bias))).collect()
    };
    let norm = |x: &[Vec<f64>], name: String| -> Vec<Vec<f64>> {
        let (weight, bias) = (load(format!("{name}.weight")), load(format!("{name}.bias")));
        x.iter().map(|x| layer_norm(x, &weight, &bias)).collect()
    };
    let add = |x: &mut [Vec<f64>], y: Vec<Vec<f64>>| {
        for (x, y) in x.iter_mut().zip(y) { for i in 0..C { x[i] += y[i]; } }
    };
    let ids: Vec<usize> = arguments[2..].iter().map(|id| id.parse().expect("a token id")).collect();
    let (wte, wpe) = (load("wte.weight".into()), load("wpe.weight".into()));
    let embed = |(t, id): (usize, &usize)| (0..C).map(|i| wte[id * C + i] + wpe[t * C + i]).collect();
    let mut x: Vec<Vec<f64>> = ids.iter().enumerate().map(embed).collect();
    for l in 0..LAYERS {
        let qkv = layer(&norm(&x, format!("h.{l}.ln_1")), format!("h.{l}.attn.c_attn"));
        let z = |t: usize| (0..HEADS).flat_map(|head| attend(&qkv[..=t], head)).collect();
        let z: Vec<Vec<f64>> = (0..x.len()).map(z).collect();
        add(&mut x, layer(&z, format!("h.{l}.attn.c_proj")));
        let pre = layer(&norm(&x, format!("h.{l}.ln_2")), format!("h.{l}.mlp.c_fc"));
        let act: Vec<Vec<f64>> = pre.into_iter().map(|row| row.into_iter().map(gelu).collect()).collect();
        add(&mut x, layer(&act, format!("h.{l}.mlp.c_proj")));
    }
    let rows: Vec<Vec<Cut>> = wte.chunks(C).map(|row| vec![cut(row)]).collect();
    for row in norm(&x, "ln_f".into()) {
        for logit in linear(&row, &rows, None) { std::io::stdout().write_all(&logit.to_le_bytes()).unwrap(); }
    }
}
