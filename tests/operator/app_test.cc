// archipelago-operator's command line and what it says of its readiness.
#include <catch2/catch.hpp>

#include "operator/app/daemon.h"

namespace archipelago::op {
namespace {

std::string refused(const std::function<void(OperatorFlags&)>& edit) {
  OperatorFlags flags;
  edit(flags);
  const auto options = read_operator_options(flags);
  if (options) return "";
  CHECK(options.error().kind == ErrorKind::kInvalid);
  return options.error().message;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("flags: what is given reaches the parts") {
  OperatorFlags flags;
  flags.learner_image = "l:1";
  flags.outer_image = "o:1";
  flags.name_space = "n";
  flags.workers = 7;
  flags.outer_address = "127.0.0.1:99";
  flags.reach_pods = "proxy";
  const auto options = read_operator_options(flags);
  REQUIRE(options);
  CHECK(options->controller.plan.learner_image == "l:1");
  CHECK(options->controller.plan.outer_image == "o:1");
  CHECK(options->controller.name_space == "n");
  CHECK(options->controller.workers == 7);
  CHECK(options->outer_address->text() == "127.0.0.1:99");
  CHECK(options->reach == ReachPods::kProxy);
  CHECK(options->listen.text() == "[::]:8080");
}

TEST_CASE("flags: what is refused names flag, value and what is allowed") {
  CHECK(refused([](OperatorFlags&) {}).empty());
  struct Row {
    std::function<void(OperatorFlags&)> edit;
    const char* flag;
    const char* given;
  };
  const Row rows[] = {
      {[](OperatorFlags& f) { f.api_qps = 0; }, "--api-qps", "0 given"},
      {[](OperatorFlags& f) { f.workers = 0; }, "--workers", "0 given"},
      {[](OperatorFlags& f) { f.poll_seconds = -1; }, "--poll-interval", "-1 given"},
      {[](OperatorFlags& f) { f.lease_seconds = 10; }, "--renew-deadline", "10 given"},
      {[](OperatorFlags& f) { f.retry_seconds = 9; }, "--retry-period", "9 given"},
      {[](OperatorFlags& f) { f.lease_seconds = 15.5; }, "--lease-duration", "15.5 given"},
      {[](OperatorFlags& f) { f.log_level = "loud"; }, "--log-level", "'loud' given"},
      {[](OperatorFlags& f) { f.reach_pods = "wire"; }, "--reach-pods", "'wire' given"},
      {[](OperatorFlags& f) { f.listen = "8080"; }, "--listen", "8080"},
      {[](OperatorFlags& f) { f.outer_address = "x"; }, "--outer-optimizer-address", "'x'"},
  };
  for (const Row& row : rows) {
    const std::string message = refused(row.edit);
    CAPTURE(message);
    CHECK(has(message, row.flag));
    CHECK(has(message, row.given));
    CHECK(has(message, "allowed"));
  }
}

TEST_CASE("readiness says what is missing") {
  CHECK(!readiness(OperatorStage::kDiscovering, "install it: kubectl apply", false, "").ready);
  CHECK(has(readiness(OperatorStage::kDiscovering, "install it", false, "").text, "install it"));
  CHECK(readiness(OperatorStage::kWaiting, "", false, "").ready);
  CHECK(!readiness(OperatorStage::kLeading, "", false, "").ready);
  CHECK(readiness(OperatorStage::kLeading, "", true, "").ready);
  const Readiness blind = readiness(OperatorStage::kLeading, "", true, "cannot list pods");
  CHECK(!blind.ready);
  CHECK(blind.text == "cannot list pods");
}

}  // namespace archipelago::op
