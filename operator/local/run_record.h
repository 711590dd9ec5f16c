#pragma once
// What a run did, from samples: the figures of summary.json and the timeline of the report. Pure;
// times are active seconds of the run (a resumed run goes on counting where it stopped).
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/result.h"

namespace archipelago::op {

enum class IslandState { kStepping, kWaiting, kRecovering, kDown };
[[nodiscard]] const char* to_string(IslandState state);
// "phase" of a learner's /statusz; nullopt (no answer) and unknown words are down.
[[nodiscard]] IslandState island_state(const std::optional<std::string>& learner_phase);

// One look at one unit.
struct UnitSample {
  std::string name;
  std::string datacenter;
  std::int64_t incarnation = 0;
  IslandState state = IslandState::kDown;
  // Of this incarnation, from its own /statusz; 0 where it did not answer.
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double seconds_in_steps = 0;
  double exchange_seconds = 0;
  double tokens_per_second = 0;
};

struct RunSample {
  double t = 0;  // active seconds
  int desired_units = 0;
  int outer_incarnation = 0;
  const nlohmann::json* outer = nullptr;  // its /statusz, or nullptr when it did not answer
  std::vector<UnitSample> units;
};

struct Segment {
  double from = 0;
  double to = 0;
  IslandState state = IslandState::kDown;
  std::int64_t incarnation = 0;
};

// Totals of one unit over all incarnations.
struct UnitTotals {
  std::string datacenter;
  std::int64_t incarnation = 0;
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double seconds_in_steps = 0;
  double exchange_seconds = 0;
  std::int64_t merged_rounds = 0;
  std::vector<double> recovery_seconds;
};

class RunRecord {
 public:
  // `interval`: H. A disturbance is over when it is so many global steps past, because a newcomer's
  // first contributions hold fewer steps.
  explicit RunRecord(std::int64_t interval = 1) : interval_(interval) {}

  void observe(const RunSample& sample);

  [[nodiscard]] double elapsed() const { return last_t_; }
  [[nodiscard]] std::optional<double> first_step_at() const { return first_step_; }
  [[nodiscard]] std::int64_t global_step() const { return global_step_; }
  [[nodiscard]] UnitTotals totals(const std::string& unit) const;
  // Seconds in completed inner steps over the integral of desired units; nullopt before the first
  // step.
  [[nodiscard]] std::optional<double> goodput() const;
  // Merged tokens over (undisturbed rate x elapsed); nullopt where the run had no undisturbed
  // stretch to compare with.
  [[nodiscard]] std::optional<double> useful_goodput() const;
  [[nodiscard]] std::optional<double> exchange_overhead() const;
  // Share of desired unit time in which units stepped or waited.
  [[nodiscard]] std::optional<double> uptime() const;
  [[nodiscard]] const std::map<std::string, std::vector<Segment>>& timeline() const {
    return timeline_;
  }
  // The last status document, null before the first.
  [[nodiscard]] nlohmann::json outer_document() const;

  // summary.json; `status`: the resource's.
  [[nodiscard]] nlohmann::json summary(const nlohmann::json& status) const;

  // For a later run in the same folder.
  [[nodiscard]] nlohmann::json save() const;
  [[nodiscard]] static Result<RunRecord> load(const nlohmann::json& saved);

 private:
  struct Incarnation {
    std::int64_t steps = 0;
    std::int64_t tokens = 0;
    double seconds_in_steps = 0;
    double exchange_seconds = 0;
  };
  struct Unit {
    std::string datacenter;
    std::map<std::int64_t, Incarnation> own;  // as its incarnations said themselves
    UnitTotals told;                          // as the outer optimizer has it
  };
  static RunRecord read(const nlohmann::json& saved);
  [[nodiscard]] double seconds_in_steps() const;
  void observe_outer(const nlohmann::json& document);
  void observe_unit(const UnitSample& sample, double t);
  void observe_rate(const RunSample& sample, double dt);

  std::int64_t interval_ = 1;
  double last_t_ = 0;
  bool any_ = false;
  std::optional<double> first_step_;
  double seconds_before_ = 0;  // in steps that were done before the first look at one
  bool complete_ = false;      // the budget is reached: nothing more is integrated
  double desired_seconds_ = 0;
  double up_seconds_ = 0;
  std::int64_t global_step_ = 0;
  std::int64_t budget_ = 0;
  double merged_tokens_ = 0;
  double active_ = 0;           // seconds since the first step, until the budget
  std::int64_t calm_from_ = 0;  // global step from which the run counts as undisturbed
  double calm_seconds_ = 0;
  double calm_tokens_ = 0;
  std::optional<double> calm_last_tokens_;
  int outer_incarnations_ = 0;
  std::string outer_text_;  // the last document
  std::map<std::string, Unit> units_;
  std::map<std::string, std::vector<Segment>> timeline_;
};

}  // namespace archipelago::op
