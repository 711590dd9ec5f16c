#include "simulator/forecast.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "common/config/estimate.h"
#include "common/config/syncer_settings.h"

namespace archipelago::simulator {

namespace {

using config::encoded_bytes;

diloco::SyncerConfig sync_of(const config::TrainingSpec& spec, std::int64_t steps, int units) {
  diloco::SyncerConfig sync = config::syncer_settings(spec);
  sync.run_id = "forecast";
  sync.quorum = std::min(sync.quorum, units);
  sync.start_units = std::min(sync.start_units, units);
  sync.budget = GlobalStep(steps);
  // No values are trained, and recovery is counted by the world's own times.
  sync.validate_every = 0;
  sync.validate_at_end = true;
  sync.recovery_timeout = Duration{};
  return sync;
}

// The embedding is alone in its fragment where it is larger than the mean (docs/algorithm.md).
std::vector<double> fragment_sizes(const config::TrainingSpec& spec,
                                   const config::ModelSize& size) {
  const auto count = static_cast<std::size_t>(spec.sync.fragments);
  std::vector<double> out(count, 1.0);
  const std::size_t tables = spec.model.tie_embeddings ? 1 : 2;
  if (count <= tables || size.parameters <= 0) return out;
  const double mean = static_cast<double>(size.parameters) / static_cast<double>(count);
  const double embedding = static_cast<double>(size.embedding) / static_cast<double>(tables) / mean;
  if (embedding <= 1) return out;
  const double taken = embedding * static_cast<double>(tables);
  for (std::size_t p = 0; p < count; ++p)
    out[p] = p < tables
                 ? embedding
                 : (static_cast<double>(count) - taken) / static_cast<double>(count - tables);
  return out;
}

// Fragments that a datacenter's link carries a step, of all: its own learners', or the hub's
// remote ones.
int link_learners(const Forecast& f, std::size_t place) {
  return static_cast<int>(place) == f.hub ? f.units - f.units_in[place] : f.units_in[place];
}

double bits_a_step(const config::TrainingSpec& spec, std::int64_t parameters,
                   std::int64_t interval) {
  const std::int64_t elements = parameters / std::max<std::int64_t>(1, interval);
  return 8.0 * static_cast<double>(std::max(encoded_bytes(spec.sync.uplink, elements),
                                            encoded_bytes(spec.sync.downlink, elements)));
}

void judge_links(Forecast& f, const config::TrainingSpec& spec, const ForecastOptions& options) {
  int busiest = 0;
  for (std::size_t i = 0; i < f.datacenters.size(); ++i) {
    const int learners = link_learners(f, i);
    busiest = std::max(busiest, learners);
    const double bits = learners * bits_a_step(spec, f.parameters, spec.sync.interval);
    f.link_seconds.push_back(options.bandwidth > 0 ? bits / options.bandwidth : 0);
    f.needed_bandwidth = std::max(f.needed_bandwidth, bits / options.step_seconds);
  }
  f.smallest_interval = 1;
  if (options.bandwidth <= 0) return;
  const double carried = options.bandwidth * options.step_seconds;
  std::int64_t low = 1, high = std::max<std::int64_t>(1, f.parameters);
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (busiest * bits_a_step(spec, f.parameters, middle) <= carried) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  f.smallest_interval = low;
}

Status check_options(const ForecastOptions& o) {
  const auto refuse = [](const char* field, double given, const char* allowed) {
    return fail(ErrorKind::kInvalid,
                std::string(field) + " is " + format("%g", given) + "; allowed: " + allowed);
  };
  if (!(o.chips_per_unit >= 0) || o.chips_per_unit > 1e9)
    return refuse("--chips-per-unit", o.chips_per_unit, "0 to 1e9");
  if (o.slices_per_unit < 1 || o.slices_per_unit > 100'000)
    return refuse("--slices-per-unit", o.slices_per_unit, "1 to 100000");
  if (o.global_steps < 1 || o.global_steps > 10'000'000)
    return refuse("--steps", static_cast<double>(o.global_steps), "1 to 10000000");
  if (!(o.step_seconds > 0)) return refuse("--step-time", o.step_seconds, "above 0");
  if (!(o.mtbi_seconds > 0)) return refuse("--mtbi", o.mtbi_seconds, "above 0");
  return {};
}

}  // namespace

Result<Forecast> forecast(const config::TrainingSpec& spec, const ForecastOptions& options,
                          int units) {
  ARCH_TRY_VOID(check_options(options));
  Forecast f;
  const config::ModelSize size = config::model_size(spec.model);
  f.parameters = size.parameters;
  f.tensors = size.tensors;
  const int of_spec = config::total_units(spec);
  f.units = units > 0 ? units : of_spec;
  for (std::size_t i = 0; i < spec.datacenters.size(); ++i) {
    f.datacenters.push_back(spec.datacenters[i].name);
    f.units_in.push_back(units > 0 ? 0 : spec.datacenters[i].learner_units);
    if (spec.datacenters[i].name == spec.outer_optimizer.datacenter) f.hub = static_cast<int>(i);
  }
  for (int u = 0; u < units; ++u) ++f.units_in[static_cast<std::size_t>(u) % f.units_in.size()];
  const std::int64_t elements = f.parameters / std::max(1, spec.sync.fragments);
  f.upload_bits = 8.0 * static_cast<double>(encoded_bytes(spec.sync.uplink, elements));
  f.publish_bits = 8.0 * static_cast<double>(encoded_bytes(spec.sync.downlink, elements));
  judge_links(f, spec, options);
  CoresConfig c;
  c.seed = options.seed;
  c.sync = sync_of(spec, options.global_steps, f.units);
  for (std::size_t i = 0; i < f.units_in.size(); ++i)
    for (int u = 0; u < f.units_in[i]; ++u) {
      CoresUnit unit;
      unit.step_seconds = options.step_seconds;
      unit.datacenter = static_cast<int>(i);
      c.units.push_back(unit);
    }
  const double rate = options.bandwidth > 0 ? options.bandwidth : kUnlimited;
  c.links.assign(f.datacenters.size(), CoresLink{rate, rate});
  c.hub = f.hub;
  c.latency = options.latency_seconds;
  c.jitter = 0.05;
  c.upload_bits = f.upload_bits;
  c.publish_bits = f.publish_bits;
  c.keyframe_bits = 32.0 * static_cast<double>(elements);
  c.state_bits = 32.0 * static_cast<double>(f.parameters);  // two moments in bf16
  c.fragment_size = fragment_sizes(spec, size);
  c.failures_per_second = options.chips_per_unit * of_spec / f.units / options.mtbi_seconds;
  c.slices = options.slices_per_unit;
  c.elastic = options.elastic;
  c.constants.step_seconds = options.step_seconds;
  c.global_steps = options.global_steps;
  // Where the links carry next to nothing the clock stands: the forecast ends all the same.
  c.seconds = 20 * static_cast<double>(options.global_steps) * options.step_seconds;
  ARCH_TRY_VOID(check(c));
  f.result = run_cores(c);
  return f;
}

std::string text(const Forecast& f, const config::TrainingSpec& spec,
                 const ForecastOptions& options) {
  const CoresResult& r = f.result;
  const auto percent = [](double share) { return format("%.1f%%", 100 * share); };
  std::string out = std::to_string(f.parameters) + " parameters, " + std::to_string(f.units) +
                    " islands, H = " + std::to_string(spec.sync.interval) +
                    ", P = " + std::to_string(spec.sync.fragments) + ", " +
                    std::to_string(r.global_steps) + " global steps in " +
                    format("%.0f", r.seconds) + " s\n";
  out += "start (every island holds every fragment) " + format("%.0f", r.start_seconds) +
         " s; from there on:\n";
  out += "goodput " + percent(r.goodput) + ", uptime " + percent(r.uptime) + ", failures " +
         std::to_string(r.failures) + "\n";
  out += "participants " + format("%.2f", r.mean_participants) + " of " + std::to_string(f.units) +
         ", global steps a step " + format("%.2f", r.global_per_step) + ", merged " +
         percent(r.merged_fraction) + " of the trained tokens\n";
  out += "grace: " + percent(r.short_rounds) +
         " of the rounds closed without an island that was "
         "stepping\n";
  out += "quorum: fewer than K = " + std::to_string(spec.sync.quorum) + " islands stepped in " +
         percent(r.below_quorum) + " of the time\n";
  for (std::size_t i = 0; i < f.datacenters.size(); ++i) {
    out += f.datacenters[i] + (static_cast<int>(i) == f.hub ? " (outer optimizer)" : "") + ": " +
           std::to_string(f.units_in[i]) + " islands";
    if (r.seconds > 0)
      out += ", out " + format("%.3f", r.up_bits[i] / r.seconds / 1e9) + " Gbit/s, in " +
             format("%.3f", r.down_bits[i] / r.seconds / 1e9) + " Gbit/s on average";
    if (options.bandwidth > 0)
      out += "; its link needs " + format("%.2f", f.link_seconds[i]) + " s a step of " +
             format("%g", options.step_seconds) + " s";
    out += "\n";
  }
  out += "the busiest link needs " + format("%.2f", f.needed_bandwidth / 1e9) +
         " Gbit/s each way to carry a step's fragments in a step\n";
  if (options.bandwidth > 0)
    out +=
        "smallest H = P at which every link carries them: " + std::to_string(f.smallest_interval) +
        (f.smallest_interval > f.tensors
             ? "; the model has " + std::to_string(f.tensors) + " tensors, so P stays below it\n"
             : "\n");
  std::size_t unit = 0;
  for (std::size_t i = 0; i < f.units_in.size(); ++i)
    for (int n = 0; n < f.units_in[i]; ++n, ++unit)
      if (r.merged_by_unit[unit] < 0.1)
        out += config::unit_name(f.datacenters[i], n) +
               " starves: " + percent(r.merged_by_unit[unit]) + " of its tokens are merged\n";
  if (options.chips_per_unit > 0)
    out +=
        "reconfiguration, restart and return times are fitted to the paper's tables, not "
        "measured\n";
  return out;
}

Comparison sweep_table(const std::vector<Forecast>& forecasts) {
  Comparison out;
  out.title = "Sweep over the number of islands, the same chips in all";
  out.unit = "percent";
  out.against_first = false;
  out.rows = {"goodput", "uptime", "participants", "merged tokens", "global steps a step"};
  Series series{"cores", std::vector<std::vector<double>>(out.rows.size())};
  for (const auto& f : forecasts) {
    out.columns.push_back(std::to_string(f.units));
    const CoresResult& r = f.result;
    const std::array<double, 5> values{r.goodput, r.uptime, r.mean_participants / f.units,
                                       r.merged_fraction, r.global_per_step};
    for (std::size_t i = 0; i < values.size(); ++i) series.cells[i].push_back(100 * values[i]);
  }
  out.series.push_back(std::move(series));
  return out;
}

namespace {

Result<double> with_unit(const std::string& field, const std::string& value,
                         const std::vector<std::pair<std::string, double>>& units,
                         const std::string& allowed) {
  double number = 0;
  const char* end = value.data() + value.size();
  const auto [rest, problem] = std::from_chars(value.data(), end, number);
  for (const auto& [unit, factor] : units)
    if (problem == std::errc() && std::string(rest, end) == unit && number > 0 &&
        std::isfinite(number * factor))
      return number * factor;
  return fail(ErrorKind::kInvalid, field + " is \"" + value + "\"; allowed: " + allowed);
}

}  // namespace

Result<double> parse_duration(const std::string& field, const std::string& value) {
  return with_unit(
      field, value,
      {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}, {"y", 365.0 * 86400}},
      "a number above 0 with ms, s, m, h, d or y, as 4s");
}

Result<double> parse_bandwidth(const std::string& field, const std::string& value) {
  return with_unit(field, value, {{"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {"Tbit", 1e12}},
                   "a number above 0 with kbit, Mbit, Gbit or Tbit (a second), as 2Gbit");
}

Result<std::vector<int>> parse_sweep(const std::string& value) {
  const std::string prefix = "units=";
  const auto refuse = [&] {
    return fail(ErrorKind::kInvalid, "--sweep is \"" + value +
                                         "\"; allowed: units= and at most 16 numbers from 1 to "
                                         "512, as units=1,2,4");
  };
  if (!value.starts_with(prefix)) return refuse();
  std::vector<int> out;
  const char* at = value.data() + prefix.size();
  const char* end = value.data() + value.size();
  while (at < end) {
    int n = 0;
    const auto [rest, problem] = std::from_chars(at, end, n);
    if (problem != std::errc() || n < 1 || n > 512 || out.size() == 16) return refuse();
    out.push_back(n);
    if (rest == end) return out;
    if (*rest != ',') return refuse();
    at = rest + 1;
  }
  return refuse();
}

}  // namespace archipelago::simulator
