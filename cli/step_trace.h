#pragma once
// steps.jsonl (run --trace-steps): mean seconds of the steps since the last look, per island: what
// the survivors of a fault feel. For benchmarks; a line a tick.
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "operator/local/run_record.h"

namespace archipelago::cli {

class StepTrace {
 public:
  explicit StepTrace(const std::string& file) : out_(file, std::ios::app) {}
  void add(double t, const std::vector<op::UnitSample>& units);

 private:
  struct Seen {
    std::int64_t incarnation = 0;
    std::int64_t steps = 0;
    double seconds = 0;
  };
  std::ofstream out_;
  std::map<std::string, Seen> seen_;
};

}  // namespace archipelago::cli
