//! How a GPU is: what the system says of its load, memory, temperature, power and energy. What it
//! does not say is not made up.

use crate::{
    files::display,
    gpu::{context::Context, device::adapter::Adapter},
};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// A number that the system gives, and where it was read.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Reading<T> {
    /// The number.
    pub value: T,
    /// Its file, or the call of NVIDIA's library or Apple's.
    pub source: String,
}

/// How hot a machine is, by what its system does about it: Apple's levels of
/// `NSProcessInfo.thermalState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Thermal {
    /// Nothing is to be done.
    Nominal,
    /// Somewhat warm: fans may be heard.
    Fair,
    /// So hot that the system slows down: an app should do less.
    Serious,
    /// The machine has to cool down at once.
    Critical,
}

impl fmt::Display for Thermal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nominal => "nominal",
            Self::Fair => "fair",
            Self::Serious => "serious",
            Self::Critical => "critical",
        })
    }
}

impl Thermal {
    /// Apple's number for it; none for one that this crate does not know.
    #[cfg(any(target_vendor = "apple", test))]
    fn of(level: isize) -> Option<Self> {
        [Self::Nominal, Self::Fair, Self::Serious, Self::Critical]
            .get(usize::try_from(level).ok()?)
            .copied()
    }

    /// What Apple's systems say of the machine.
    #[cfg(target_vendor = "apple")]
    fn read() -> Option<Reading<Self>> {
        let level = objc2_foundation::NSProcessInfo::processInfo().thermalState().0;
        Some(Reading { value: Self::of(level)?, source: "NSProcessInfo.thermalState".to_owned() })
    }

    /// No other system has such levels.
    #[cfg(not(target_vendor = "apple"))]
    fn read() -> Option<Reading<Self>> {
        None
    }
}

/// What the system says of a GPU at a moment: [`Adapter::health`], [`Context::health`]. Each is
/// `None` where it does not say it.
///
/// On Linux, drivers tell it by files: amdgpu all of it, others some, NVIDIA's own none. With the
/// feature `nvml`, the library that comes with NVIDIA's driver is asked, on other systems too; it
/// is loaded anew each time, so that this is not for every token. Apple's systems say how hot the
/// machine is ([`Health::thermal`]), and nothing else. Elsewhere, and for software adapters, all is
/// `None`. An app may throttle itself by it: smaller batches (with models, `Batch::limit`), pauses
/// between tokens.
///
/// ```no_run
/// # fn throttled(context: &bitnet_wgpu::Context, slots: usize) -> usize {
/// match context.health().temperature {
///     Some(celsius) if celsius.value > 90.0 => slots.div_ceil(2),
///     _ => slots, // cool, or nobody knows
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// The share of time that it was busy of late, by all programs: 0 to 1.
    pub utilization: Option<Reading<f64>>,
    /// Bytes of its own memory that are in use, by all programs.
    pub memory_used: Option<Reading<u64>>,
    /// Bytes of its own memory.
    pub memory_total: Option<Reading<u64>>,
    /// Degrees Celsius: the first of its sensors, which drivers call `edge`, `gpu` or `pkg`.
    pub temperature: Option<Reading<f64>>,
    /// Watts: their mean of late, or those of the moment where the driver has no mean.
    pub power: Option<Reading<f64>>,
    /// Joules that it took since its driver began to count, for all programs: two readings give
    /// what was taken between them. Drivers renew it some ten times a second (an H200 every 0.1 s),
    /// so that it says little of shorter times.
    pub energy: Option<Reading<f64>>,
    /// How hot the whole machine is, on Apple's systems; no Apple hardware has run this.
    pub thermal: Option<Reading<Thermal>>,
}

impl Adapter {
    /// What the system says of it now.
    pub fn health(&self) -> Health {
        Health::of(&self.raw().get_info())
    }
}

impl Context {
    /// What the system says of its GPU now.
    pub fn health(&self) -> Health {
        Health::of(self.adapter_info())
    }
}

impl Health {
    fn of(info: &wgpu::AdapterInfo) -> Self {
        let reported = Self {
            thermal: Thermal::read(),
            ..Self::below(Path::new("/sys"), &info.device_pci_bus_id)
        };
        #[cfg(feature = "nvml")]
        if reported == Self::default() && !info.device_pci_bus_id.is_empty() {
            return Self::by_nvml(&info.device_pci_bus_id).unwrap_or_default();
        }
        reported
    }

    /// What NVIDIA's library tells of the device of this address, where there is one. The library
    /// is loaded for each call.
    #[cfg(feature = "nvml")]
    fn by_nvml(address: &str) -> Option<Self> {
        use nvml_wrapper::{Nvml, enum_wrappers::device::TemperatureSensor};
        // The first is its name where only the driver is installed, on Linux.
        let nvml = Nvml::builder()
            .lib_path("libnvidia-ml.so.1".as_ref())
            .init()
            .or_else(|_| Nvml::init())
            .ok()?;
        let device = nvml.device_by_pci_bus_id(address).ok()?;
        fn reported<T>(value: T, call: &str) -> Reading<T> {
            Reading { value, source: format!("NVML, {call}") }
        }
        let memory = device.memory_info().ok();
        let busy = device.utilization_rates().ok().filter(|rates| rates.gpu <= 100);
        let celsius = device.temperature(TemperatureSensor::Gpu).ok();
        let milliwatts = device.power_usage().ok();
        let millijoules = device.total_energy_consumption().ok();
        Some(Self {
            utilization: busy.map(|rates| {
                reported(f64::from(rates.gpu) / 100.0, "nvmlDeviceGetUtilizationRates")
            }),
            memory_used: memory
                .as_ref()
                .map(|memory| reported(memory.used, "nvmlDeviceGetMemoryInfo_v2")),
            memory_total: memory
                .as_ref()
                .map(|memory| reported(memory.total, "nvmlDeviceGetMemoryInfo_v2")),
            temperature: celsius
                .map(|celsius| reported(f64::from(celsius), "nvmlDeviceGetTemperature")),
            power: milliwatts
                .map(|milliwatts| reported(f64::from(milliwatts) / 1e3, "nvmlDeviceGetPowerUsage")),
            energy: millijoules.map(|millijoules| {
                reported(millijoules as f64 / 1e3, "nvmlDeviceGetTotalEnergyConsumption")
            }),
            thermal: None,
        })
    }

    /// What Linux tells below `root`, which is `/sys` but for tests, of the device of this address
    /// (`0000:03:00.0`).
    fn below(root: &Path, address: &str) -> Self {
        // It names a folder there: nothing else of the system is to be read.
        let named = address.starts_with(|first: char| first.is_ascii_hexdigit());
        if !named
            || !address.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))
        {
            return Self::default();
        }
        let device = root.join("bus/pci/devices").join(address);
        let sensors = sensors(&device.join("hwmon"));
        // By the kernel's documentation: percents, bytes, thousandths of a degree, millionths of a
        // watt and of a joule.
        let sensed = |name: &str, value: &dyn Fn(f64) -> Option<f64>| {
            sensors.iter().find_map(|sensors| read(sensors.join(name), value))
        };
        let millionths = |n: f64| (n >= 0.0).then_some(n / 1e6);
        Self {
            utilization: read(device.join("gpu_busy_percent"), |percent| {
                (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
            }),
            memory_used: read(device.join("mem_info_vram_used"), whole),
            memory_total: read(device.join("mem_info_vram_total"), whole),
            // Intel's newer driver (xe) begins with the second.
            temperature: ["temp1_input", "temp2_input"]
                .iter()
                .find_map(|name| sensed(name, &|n| Some(n / 1e3))),
            power: ["power1_average", "power1_input"]
                .iter()
                .find_map(|name| sensed(name, &millionths)),
            energy: sensed("energy1_input", &millionths),
            thermal: None,
        }
    }
}

fn whole(bytes: f64) -> Option<u64> {
    // What a float cannot hold to the byte is no GPU's memory.
    (0.0..9e15).contains(&bytes).then_some(bytes as u64)
}

/// The folders of a device's sensors (`hwmon3`), by name.
fn sensors(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// The number in a file, if there is one, and it makes sense.
fn read<T>(path: PathBuf, value: impl FnOnce(f64) -> Option<T>) -> Option<Reading<T>> {
    // Drivers refuse to be read while a device sleeps; that is no error of ours, and no number.
    let text = fs::read_to_string(&path).ok()?;
    let number: i64 = text.trim().parse().ok()?;
    Some(Reading { value: value(number as f64)?, source: display(&path).to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "0000:03:00.0";

    /// Files as drivers have them below /sys.
    fn recorded(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join("bus/pci/devices").join(ADDRESS).join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    /// Utilization, memory that is used, memory, temperature, power, energy.
    type Values = (Option<f64>, Option<u64>, Option<u64>, Option<f64>, Option<f64>, Option<f64>);

    fn values(health: Health) -> Values {
        let Health {
            utilization,
            memory_used,
            memory_total,
            temperature,
            power,
            energy,
            thermal: _,
        } = health;
        let (used, total) = (memory_used.map(|r| r.value), memory_total.map(|r| r.value));
        (
            utilization.map(|r| r.value),
            used,
            total,
            temperature.map(|r| r.value),
            power.map(|r| r.value),
            energy.map(|r| r.value),
        )
    }

    #[test]
    fn readings_are_the_drivers_in_their_units() {
        // amdgpu, by its names and units.
        let root = recorded(&[
            ("gpu_busy_percent", "97\n"),
            ("mem_info_vram_used", "1503238553\n"),
            ("mem_info_vram_total", "17163091968\n"),
            ("hwmon/hwmon4/temp1_input", "58500\n"),
            ("hwmon/hwmon4/temp2_input", "71000\n"),
            ("hwmon/hwmon4/power1_average", "187000000\n"),
            ("hwmon/hwmon4/power1_input", "190000000\n"),
        ]);
        let health = Health::below(root.path(), ADDRESS);
        assert!(
            health
                .power
                .as_ref()
                .unwrap()
                .source
                .ends_with("0000:03:00.0/hwmon/hwmon4/power1_average")
        );
        assert_eq!(
            values(health),
            (Some(0.97), Some(1_503_238_553), Some(17_163_091_968), Some(58.5), Some(187.0), None)
        );
        // Sensors may be in a later folder, and power without a mean.
        let root = recorded(&[
            ("hwmon/hwmon1/name", "other\n"),
            ("hwmon/hwmon2/temp1_input", "-4000\n"),
            ("hwmon/hwmon2/power1_input", "25\n"),
            // i915's and xe's.
            ("hwmon/hwmon2/energy1_input", "8503141000\n"),
        ]);
        assert_eq!(
            values(Health::below(root.path(), ADDRESS)),
            (None, None, None, Some(-4.0), Some(25e-6), Some(8503.141))
        );
        let root = recorded(&[
            ("hwmon/hwmon3/temp2_input", "41000\n"),
            ("hwmon/hwmon3/temp3_input", "50000\n"),
        ]);
        assert_eq!(values(Health::below(root.path(), ADDRESS)).3, Some(41.0));
    }

    #[cfg(feature = "nvml")]
    #[test]
    fn without_nvml_there_is_no_telemetry() {
        // No machine has a GPU there.
        assert_eq!(Health::by_nvml("ffff:ff:1f.7"), None);
    }

    #[test]
    fn apples_levels_have_their_names() {
        assert_eq!(
            [0, 1, 2, 3].map(Thermal::of),
            [Thermal::Nominal, Thermal::Fair, Thermal::Serious, Thermal::Critical].map(Some)
        );
        assert_eq!([-1, 4].map(Thermal::of), [None, None]);
    }

    #[test]
    fn what_is_not_said_is_not_made_up() {
        let root = recorded(&[
            ("gpu_busy_percent", "101\n"),
            ("mem_info_vram_used", "-1\n"),
            ("mem_info_vram_total", "99999999999999999999\n"),
            ("hwmon/hwmon0/temp1_input", "\n"),
            ("hwmon/hwmon0/power1_input", "-5\n"),
            ("hwmon/hwmon0/energy1_input", "-5\n"),
        ]);
        assert_eq!(Health::below(root.path(), ADDRESS), Health::default());
        let root = recorded(&[("gpu_busy_percent", "5\n")]);
        assert!(Health::below(root.path(), ADDRESS).utilization.is_some());
        // Beside the devices, and in the folder of all.
        fs::write(root.path().join("bus/pci/gpu_busy_percent"), "5\n").unwrap();
        fs::write(root.path().join("bus/pci/devices/gpu_busy_percent"), "5\n").unwrap();
        for other in ["", ".", "..", "0000:04:00.0", "../devices/0000:03:00.0", "/sys"] {
            assert_eq!(Health::below(root.path(), other), Health::default(), "{other:?}");
        }
    }
}
