#include "common/config/changes.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/config/parse.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 14> kLive{"suspend",
                                                 "images",
                                                 "data.volume",
                                                 "sync.quorum",
                                                 "sync.grace",
                                                 "outerOptimizer.storage.retain",
                                                 "restart",
                                                 "outerOptimizer.checkpoint",
                                                 "recovery",
                                                 "outerOptimizer.finishedLingerSeconds",
                                                 "datacenters",
                                                 "outerOptimizer.template",
                                                 "ttlSecondsAfterFinished",
                                                 "activeDeadlineSeconds"};
// Of a datacenter that stays.
constexpr std::array<std::string_view, 4> kLiveOfDatacenter{"learnerUnits", "images", "data",
                                                            "template"};
// Defaults that follow from other fields, some of them live: compared as they were given.
constexpr std::array<std::string_view, 5> kFollowing{"/sync/overlap", "/sync/maxLead",
                                                     "/sync/startUnits", "/inner/warmupSteps",
                                                     "/outer/learningRate"};

Json resolved_spec(const Json& document, const DecoupledTraining& training) {
  Json spec = to_json(training)["spec"];
  const Json& given = document["spec"];
  for (const std::string_view text : kFollowing) {
    const Json::json_pointer at{std::string(text)};
    spec[at] = given.contains(at) ? given[at] : Json();
  }
  return spec;
}

class Comparison {
 public:
  explicit Comparison(std::vector<FieldError>& errors) : errors_(errors) {}

  // path: of before and after, below spec; shown: the same as errors name it.
  template <std::size_t N>
  void compare(const std::string& path, const std::string& shown, const Json& before,
               const Json& after, const std::array<std::string_view, N>& live) {
    if (std::find(live.begin(), live.end(), path) != live.end() || before == after) return;
    if (before.is_object() && after.is_object()) {
      std::set<std::string> keys;
      for (const auto& item : before.items()) keys.insert(item.key());
      for (const auto& item : after.items()) keys.insert(item.key());
      for (const std::string& key : keys) {
        compare(path.empty() ? key : path + "." + key, shown + "." + key, before.value(key, Json()),
                after.value(key, Json()), live);
      }
      return;
    }
    if (path == "budget.globalSteps") return budget(shown, before, after);
    add(shown, after, "is immutable", show_value(before), "create a new run");
  }

 private:
  void budget(const std::string& shown, const Json& before, const Json& after) {
    if (after.get<std::int64_t>() > before.get<std::int64_t>()) return;
    add(shown, after, "is less than before", before.dump() + " or more", "");
  }
  void add(const std::string& shown, const Json& given, std::string problem, std::string allowed,
           std::string hint) {
    errors_.push_back({shown, given.is_null() ? "nothing" : show_value(given), std::move(allowed),
                       std::move(hint), std::move(problem), 0});
  }
  std::vector<FieldError>& errors_;
};

}  // namespace

std::vector<FieldError> check_changes(const Json& before, const Json& after) {
  std::vector<FieldError> errors;
  const auto old_run = parse_training_object(before);
  const auto new_run = parse_training_object(after);
  if (!old_run || !new_run) return errors;
  const Json old_spec = resolved_spec(before, *old_run);
  const Json new_spec = resolved_spec(after, *new_run);
  Comparison comparison(errors);
  comparison.compare("", "spec", old_spec, new_spec, kLive);
  const Json& datacenters = new_spec["datacenters"];
  for (std::size_t i = 0; i < datacenters.size(); ++i) {
    for (const Json& old : old_spec["datacenters"]) {
      if (old["name"] != datacenters[i]["name"]) continue;
      comparison.compare("", "spec.datacenters[" + std::to_string(i) + "]", old, datacenters[i],
                         kLiveOfDatacenter);
    }
  }
  return errors;
}

}  // namespace archipelago::config
