#include "simulator/availability.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

namespace archipelago::simulator {

namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Interval {
  double from = 0, to = 0;
};

// One learner of the availability model.
struct Learner {
  Learner(SlicePool p, Rng r) : pool(std::move(p)), rng(r) {}
  SlicePool pool;
  Rng rng;
  double now = 0, useful = 0, stepping = 0;
  std::int64_t failures = 0, pauses = 0, events = 0;
  std::vector<Interval> down;  // in order; not yet compared with the others
};

void pause(Learner& learner, double seconds) {
  if (seconds <= 0) return;
  ++learner.pauses;
  learner.down.push_back({learner.now, learner.now + seconds});
  learner.now += seconds;
}

// Runs to the end of the next step at which something happens, or past `until`.
void advance(Learner& learner, double until, double rate, const AvailabilityConfig& config,
             const ReturnDelay& delay) {
  const auto& c = config.constants;
  const double step = c.step_seconds;
  while (learner.now < until) {
    const double share = static_cast<double>(learner.pool.present()) / learner.pool.total();
    const double mean = rate * step * share;
    // Steps up to and with the first that has a failure: geometric, so an unfinished wait may be
    // drawn anew.
    const double to_failure =
        mean > 0 ? 1 + std::floor(-std::log(1 - learner.rng.uniform()) / mean) : kInfinity;
    const double to_return =
        std::max(1.0, std::ceil((learner.pool.next_return() - learner.now) / step));
    const double to_end = std::max(1.0, std::ceil((until - learner.now) / step));
    const double steps = std::min({to_failure, to_return, to_end});
    learner.now += steps * step;
    learner.useful += steps * step * share;
    learner.stepping += steps * step;
    ++learner.events;
    const bool failed = to_failure <= steps;
    if (failed && !config.elastic) {
      learner.failures += draw_some_failures(learner.rng, mean);
      pause(learner, c.restart_seconds);
      continue;
    }
    const int lost = failed ? draw_some_failures(learner.rng, mean) : 0;
    learner.failures += lost;
    pause(learner, learner.pool.step_end(lost, learner.now, delay, c, learner.rng));
  }
}

// Seconds below `until` in which all are down; what lies beyond stays.
double all_down(std::vector<Learner>& learners, double until) {
  struct Edge {
    double at;
    int change;
  };
  std::vector<Edge> edges;
  for (auto& learner : learners) {
    std::vector<Interval> rest;
    for (const auto& d : learner.down) {
      if (d.from < until) {
        edges.push_back({d.from, 1});
        edges.push_back({std::min(d.to, until), -1});
      }
      if (d.to > until) rest.push_back({std::max(d.from, until), d.to});
    }
    learner.down = std::move(rest);
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return a.at != b.at ? a.at < b.at : a.change < b.change;
  });
  double sum = 0, since = 0;
  int count = 0;
  const int all = static_cast<int>(learners.size());
  for (const auto& edge : edges) {
    if (count == all) sum += edge.at - since;
    count += edge.change;
    since = edge.at;
  }
  return sum;
}

Status positive(const char* field, double value) {
  if (std::isfinite(value) && value > 0) return {};
  return fail(ErrorKind::kInvalid,
              std::string(field) + " is " + std::to_string(value) + "; allowed: above 0");
}
}  // namespace

ReturnDelay::ReturnDelay(double mean_seconds, double shape, double power)
    : shape_(shape), power_(power) {
  if (shape_ == 1 && power_ == 1) {
    scale_ = mean_seconds;
    return;
  }
  constexpr int kPoints = 100'000;
  double mean = 0;
  for (int i = 0; i < kPoints; ++i) mean += quantile((i + 0.5) / kPoints) / kPoints;
  scale_ = mean_seconds / mean;
}

double ReturnDelay::quantile(double u) const {
  const double inner = power_ == 1 ? u : std::pow(u, 1 / power_);
  const double hazard = -std::log1p(-inner);
  return scale_ * (shape_ == 1 ? hazard : std::pow(hazard, 1 / shape_));
}

int draw_some_failures(Rng& rng, double mean) {
  // Inversion from P(n = 1 | n >= 1).
  double u = rng.uniform() * (1 - std::exp(-mean));
  double p = mean * std::exp(-mean);
  int n = 1;
  while (u >= p && n < 1'000'000) {
    u -= p;
    p *= mean / ++n;
    if (p <= 0) break;
  }
  return n;
}

double SlicePool::next_return() const { return away_.empty() ? kInfinity : away_.front(); }

double SlicePool::step_end(int lost, double now, const ReturnDelay& delay,
                           const AvailabilityConstants& c, Rng& rng) {
  bool came = false, left = false;
  while (!away_.empty() && away_.front() <= now) {
    std::pop_heap(away_.begin(), away_.end(), std::greater<>());
    away_.pop_back();
    came = true;
  }
  for (; lost > 0 && present() > 1; --lost) {
    away_.push_back(now + delay.draw(rng));
    std::push_heap(away_.begin(), away_.end(), std::greater<>());
    left = true;
  }
  // A learner of a single slice has none to spare: it stands still as one that shrinks does.
  if (lost > 0 && total_ == 1) left = true;
  return std::max(left ? c.down_seconds : 0.0, came ? c.up_seconds : 0.0);
}

Status check(const AvailabilityConfig& config) {
  ARCH_TRY_VOID(positive("chips", config.chips));
  ARCH_TRY_VOID(positive("mtbi", config.mtbi_seconds));
  ARCH_TRY_VOID(positive("duration", config.seconds));
  ARCH_TRY_VOID(positive("return shape", config.return_shape));
  ARCH_TRY_VOID(positive("return power", config.return_power));
  ARCH_TRY_VOID(positive("step time", config.constants.step_seconds));
  if (config.learners < 1 || config.learners > 512)
    return fail(ErrorKind::kInvalid,
                "learners is " + std::to_string(config.learners) + "; allowed: 1 to 512");
  if (config.slices < config.learners || config.slices > 1'000'000)
    return fail(ErrorKind::kInvalid, "slices is " + std::to_string(config.slices) +
                                         "; allowed: one a learner to 1000000");
  return {};
}

AvailabilityResult simulate_availability(const AvailabilityConfig& config) {
  const auto& c = config.constants;
  const double rate = config.chips / config.mtbi_seconds / config.learners;
  const ReturnDelay delay(c.return_seconds_per_slice * config.slices, config.return_shape,
                          config.return_power);
  std::vector<Learner> learners;
  for (int m = 0; m < config.learners; ++m) {
    const auto salt = static_cast<std::uint64_t>(m + 1);
    learners.emplace_back(SlicePool(config.slices / config.learners),
                          Rng(mix64(config.seed + salt * 0x100000001b3ULL)));
  }
  // In windows, so that a long run keeps few pauses in memory.
  constexpr double kWindow = 50'000;
  double dark = 0;
  for (double from = 0; from < config.seconds; from += kWindow) {
    const double until = std::min(from + kWindow, config.seconds);
    for (auto& learner : learners) advance(learner, until, rate, config, delay);
    dark += all_down(learners, until);
  }
  AvailabilityResult out;
  for (const auto& learner : learners) {
    out.goodput += learner.useful / learner.now / config.learners;
    out.learner_uptime += learner.stepping / learner.now / config.learners;
    out.failures += learner.failures;
    out.pauses += learner.pauses;
    out.events += learner.events;
  }
  out.uptime = 1 - dark / config.seconds;
  return out;
}

}  // namespace archipelago::simulator
