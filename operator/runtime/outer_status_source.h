#pragma once
// Port to the daemons' admin ports, called from the poller's own threads: reconcile itself talks to
// the cluster only.
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"

namespace archipelago::op {

// A pod of a run, as the cluster shows it.
struct PodEndpoint {
  std::string name_space;
  std::string run;
  std::string run_uid;
  std::string pod;
  std::string pod_uid;
  std::string pod_ip;  // status.podIP, may be empty
};

// What a learner's admin port says about itself.
struct UnitProbe {
  bool answered = false;
  std::string phase;  // "phase" of its /statusz: Starting | Recovering | Stepping | Waiting | ...
};

// Every call returns within `deadline`. Thread-safe.
class OuterStatusSource {
 public:
  virtual ~OuterStatusSource() = default;
  // GET /statusz of the outer optimizer's admin port (8471), as it is.
  [[nodiscard]] virtual Result<std::string> poll(const PodEndpoint& outer, Duration deadline) = 0;
  // PUT /v1/settings on the outer optimizer's service port (8470):
  // {"generation", "quorum", "grace": {"rule","steps","fraction"}, "budget": {"globalSteps"}}.
  [[nodiscard]] virtual Status put_settings(const PodEndpoint& outer,
                                            const nlohmann::json& settings, Duration deadline) = 0;
  // GET /statusz of a learner's admin port: asked only of a unit that has long been silent at the
  // outer optimizer.
  [[nodiscard]] virtual UnitProbe probe_unit(const PodEndpoint& learner, Duration deadline) = 0;
};

// A learner's /statusz; what is no JSON object is no answer.
[[nodiscard]] UnitProbe read_probe(const Result<std::string>& text);

}  // namespace archipelago::op
