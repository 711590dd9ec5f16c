#pragma once
// What a spec would do on given chips and links, before anybody buys them: the production cores in
// virtual time, with the spec's model, codecs, datacenters and settings.
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/spec.h"
#include "simulator/comparison.h"
#include "simulator/cores_world.h"

namespace archipelago::simulator {

struct ForecastOptions {
  std::uint64_t seed = 1;
  double chips_per_unit = 0;  // 0: nothing fails
  double mtbi_seconds = 365.0 * 24 * 3600;
  double step_seconds = 1;
  double bandwidth = 0;  // bits a second of each datacenter's link, each way; 0: unlimited
  double latency_seconds = 0;
  int slices_per_unit = 16;
  bool elastic = false;  // islands shrink and grow; else a failure restarts the island
  std::int64_t global_steps = 1000;
};

struct Forecast {
  std::int64_t parameters = 0;
  int units = 0;
  double upload_bits = 0, publish_bits = 0;  // of a mean fragment
  std::vector<std::string> datacenters;
  std::vector<int> units_in;  // by datacenter
  int hub = 0;
  // By datacenter: seconds that its link needs for a step's fragments, the busier way.
  std::vector<double> link_seconds;
  std::int64_t smallest_interval = 0;  // H = P at which every link carries a step's fragments
  std::int64_t tensors = 0;            // H = P can't be larger
  double needed_bandwidth = 0;         // of the busiest link for the spec's own H and P
  CoresResult result;
};

// `units`: islands in all, over the spec's datacenters in turn; 0: as the spec says. The chips in
// all stay those of the spec. kInvalid names the field.
[[nodiscard]] Result<Forecast> forecast(const config::TrainingSpec& spec,
                                        const ForecastOptions& options, int units = 0);
[[nodiscard]] std::string text(const Forecast& forecast, const config::TrainingSpec& spec,
                               const ForecastOptions& options);
// Goodput, uptime, participants and clock against the number of islands.
[[nodiscard]] Comparison sweep_table(const std::vector<Forecast>& forecasts);

// "4s", "500ms", "2h", "30d", "1y"; "2Gbit", "500Mbit", "10kbit" a second. kInvalid: `field`, what
// was given and what is allowed.
[[nodiscard]] Result<double> parse_duration(const std::string& field, const std::string& value);
[[nodiscard]] Result<double> parse_bandwidth(const std::string& field, const std::string& value);
[[nodiscard]] Result<std::vector<int>> parse_sweep(const std::string& value);  // "units=1,2,4"

}  // namespace archipelago::simulator
