#pragma once
// Answers for every outer optimizer and every learner at one address: the operator names the pod it
// means in headers. Learners that the test kubelet started step; what a test wants otherwise it
// says per run:
//
//   PUT /control/runs/NAMESPACE/NAME   {"down": false, "stepsPerSecond": 2.0, "document": {...},
//                                       "units": {"us-east-0": {"phase": "Silent"}}, "probe":
//                                       "Stepping"}
//   GET /control/runs/NAMESPACE/NAME   {"polls": n, "settings": [...], "probes": [...]}
//
// "document" and "units" are merged into the status that would be given; "probe" is what learners
// say, "" for no answer.
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/http/server.h"
#include "tests/cluster/pod_table.h"

namespace archipelago::test {

class OuterStub {
 public:
  OuterStub(const PodTable& table, const Clock& clock) : table_(table), clock_(clock) {}
  void add_routes(http::Server& server);

 private:
  struct Run {
    nlohmann::json script = nlohmann::json::object();
    nlohmann::json settings = nlohmann::json::array();
    nlohmann::json probes = nlohmann::json::array();
    std::int64_t polls = 0;
    double steps = 1;  // done up to `at`; the first by the first answer
    TimePoint at{};
    bool begun = false;
  };

  http::Reply status(const http::Request& request);
  http::Reply put_settings(const http::Request& request);
  http::Reply put_script(const http::Request& request);
  http::Reply get_record(const http::Request& request);
  nlohmann::json document(const std::string& run_uid, Run& run, std::int64_t incarnation);
  void advance(Run& run);

  const PodTable& table_;
  const Clock& clock_;
  std::mutex mutex_;
  std::map<std::string, Run> runs_;  // by "namespace/name"
};

}  // namespace archipelago::test
