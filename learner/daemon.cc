#include "learner/daemon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <thread>
#include <unistd.h>

#include "common/base/files.h"
#include "common/config/parse.h"
#include "common/wire/frame.h"
#include "learner/admin.h"
#include "learner/data.h"
#include "learner/exchange.h"
#include "learner/hf_config.h"
#include "learner/inner_of.h"
#include "learner/llama_shapes.h"
#include "learner/model_folder.h"
#include "learner/train_loop.h"
#include "learner/watchdog.h"

namespace archipelago::learner {
namespace {

using Failure = std::pair<ExitCode, std::string>;

// The spec and the codecs use the same names.
codec::Codec codec_of(config::CodecName name) {
  return codec::parse_codec(config::to_string(name)).value();
}

std::string random_session() {
  std::random_device device;
  std::array<std::uint8_t, 16> bytes{};
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(device());
  return wire::to_hex(bytes);
}

// Everything that comes from flags, spec and files, before anything runs.
struct Setup {
  config::TrainingSpec spec;
  config::InnerSpec inner;  // with this datacenter's overrides
  std::vector<TensorShape> shapes;
  diloco::Layout layout;
  FragmentMap fragments;
  TokenFile train;
  std::optional<TokenFile> validation;
  http::Endpoint outer, admin;
};

tl::expected<config::TrainingSpec, Failure> read_spec(const Flags& flags) {
  const auto text = read_file(flags.config);
  if (!text) return tl::unexpected(Failure{ExitCode::kConfigRefused, text.error().message});
  const auto training = config::parse_training(*text);
  if (training) return training->spec;
  std::string all = flags.config + ":";
  for (const auto& error : training.error()) all += " " + config::format_error(error) + ";";
  return tl::unexpected(Failure{ExitCode::kConfigRefused, all});
}

// As early as can be. Only the learner that is asked for the first weights needs the folder, so one
// that is not there is no error yet.
Status check_init_path(const config::ModelSpec& model) {
  if (model.init_path.empty()) return {};
  const auto stored = read_model_config(model.init_path);
  if (!stored && stored.error().kind == ErrorKind::kNotFound) return {};
  const Status same = stored ? same_model(model, *stored) : Status(tl::unexpected(stored.error()));
  if (same) return {};
  return fail(same.error().with_context("spec.model.initFrom.path " + model.init_path));
}

tl::expected<Setup, Failure> set_up(const Flags& flags, const DaemonHooks& hooks) {
  Setup setup;
  auto spec = read_spec(flags);
  if (!spec) return tl::unexpected(spec.error());
  setup.spec = std::move(*spec);
  setup.inner = inner_of(setup.spec, flags.datacenter);
  const auto refused = [](const Error& error) {
    return tl::unexpected(Failure{ExitCode::kConfigRefused, error.message});
  };
  auto outer = http::parse_endpoint(flags.outer);
  if (!outer) return refused(outer.error().with_context("--outer"));
  auto admin = http::parse_endpoint(flags.admin);
  if (!admin) return refused(admin.error().with_context("--admin"));
  setup.outer = *outer;
  setup.admin = *admin;
  if (const Status same = check_init_path(setup.spec.model); !same) return refused(same.error());
  setup.shapes = hooks.shapes(setup.spec.model);
  auto layout = layout_of(setup.shapes);
  if (!layout) return refused(layout.error());
  setup.layout = std::move(*layout);
  const auto scheme = diloco::parse_scheme(setup.spec.sync.fragmentation);
  if (!scheme) return refused(scheme.error().with_context("sync.fragmentation"));
  auto fragments = FragmentMap::create(setup.layout, setup.spec.sync.fragments, *scheme);
  if (!fragments) return refused(fragments.error().with_context("sync.fragments"));
  setup.fragments = std::move(*fragments);
  const auto& model = setup.spec.model;
  const auto& data = setup.spec.data;
  auto train =
      TokenFile::open(data.train.path, data.train.format, model.context_length, model.vocab_size);
  if (!train) return tl::unexpected(Failure{ExitCode::kDataUnreadable, train.error().message});
  setup.train = std::move(*train);
  if (!data.validation.empty()) {
    auto file = TokenFile::open(data.validation[0].path, data.train.format, model.context_length,
                                model.vocab_size);
    if (!file) return tl::unexpected(Failure{ExitCode::kDataUnreadable, file.error().message});
    setup.validation = std::move(*file);
  }
  return setup;
}

diloco::LearnerConfig core_config(const Setup& setup, const diloco::UnitKey& who) {
  diloco::LearnerConfig config;
  config.who = who;
  config.fragments = setup.spec.sync.fragments;
  config.interval = setup.spec.sync.interval;
  config.overlap = setup.spec.sync.overlap;
  config.max_lead = setup.spec.sync.max_lead;
  return config;
}

ExchangeOptions exchange_options(const Setup& setup, const Flags& flags,
                                 const diloco::UnitKey& who) {
  ExchangeOptions options;
  options.outer = setup.outer;
  if (const char* credential = std::getenv("ARCHIPELAGO_CREDENTIAL"))
    options.credential = credential;
  options.run_id = flags.run_id;
  options.uplink = codec_of(setup.spec.sync.uplink);
  options.published_bf16 = setup.spec.sync.published == config::Precision::kBf16;
  options.layout_text = setup.layout.to_text();
  options.layout_body = layout_body(setup.layout, hf_config_json(setup.spec.model));
  options.recovery_precision = setup.spec.recovery.precision;
  options.hello.who = who;
  options.hello.datacenter = flags.datacenter;
  options.hello.can_validate = setup.validation.has_value();
  options.hello.layout_digest = setup.layout.digest().hex();
  options.hello.dataset_sequences = setup.train.sequences();
  options.hello.dataset_digest = setup.train.digest();
  options.hello.sequences_per_step =
      static_cast<std::uint32_t>(setup.inner.batch_size * setup.inner.gradient_accumulation);
  return options;
}

TrainLoopOptions loop_options(const Setup& setup, const Flags& flags, const diloco::UnitKey& who) {
  TrainLoopOptions options;
  options.tape_start.session = who.session;
  options.tape_start.datacenter = flags.datacenter;
  options.tape_start.layout_digest = setup.layout.digest().hex();
  options.tape_start.dataset_digest = setup.train.digest();
  options.inner = setup.inner;
  options.budget = GlobalStep(setup.spec.budget.global_steps);
  options.init_seed = setup.spec.model.init_seed;
  options.init_path = setup.spec.model.init_path;
  options.data_seed = setup.spec.inner.seed;
  options.blend = setup.spec.sync.blend;
  if (!setup.spec.data.validation.empty())
    options.validation_sequences = setup.spec.data.validation[0].sequences;
  options.recovery_precision = setup.spec.recovery.precision;
  options.recovery_timeout = seconds(setup.spec.recovery.timeout_seconds);
  return options;
}

// The part that lives: threads around the hub until the loop ends.
ExitCode live(const Setup& setup, const Flags& flags, const DaemonHooks& hooks,
              const std::stop_token& stop, const Logger& log, std::string* why) {
  const SystemClock clock;
  const diloco::UnitKey who{flags.unit, Incarnation(flags.incarnation), random_session()};
  Hub hub(core_config(setup, who), setup.fragments, clock);
  Exchange exchange(exchange_options(setup, flags, who), setup.fragments, hub,
                    log.named("exchange"));
  Admin admin(setup.admin, {flags.run_id, flags.unit, flags.datacenter, who.incarnation}, hub,
              exchange.counters(), log.named("admin"));
  if (const Status started = admin.start(); !started) {
    *why = started.error().message;
    return ExitCode::kInternal;
  }
  hooks.admin_ready(admin.port());
  exchange.start();
  auto trainer = hooks.trainer(setup.spec.model, setup.inner);
  if (!trainer) {
    *why = trainer.error().message;
    return ExitCode::kConfigRefused;
  }
  const std::string last_words = termination_path(flags);
  Watchdog watchdog(seconds(setup.spec.restart.stall_seconds), [&](Duration idle) {
    const std::string text =
        "watchdog: no completed step for " + std::to_string(to_seconds(idle)) + " s";
    log.error("watchdog", {{"idle_seconds", to_seconds(idle)}});
    write_termination(last_words, text);
    std::_Exit(static_cast<int>(
        ExitCode::kWatchdog));  // the training thread is stuck: no destructor would return
  });
  TrainLoop loop(
      loop_options(setup, flags, who), setup.fragments, **trainer, setup.train,
      setup.validation ? &*setup.validation : nullptr, hub, clock, log.named("train"),
      [&](std::optional<Duration> step) { step ? watchdog.stepping(*step) : watchdog.paused(); });
  const ExitCode code = loop.run(stop);
  watchdog.paused();
  exchange.stop(code == ExitCode::kLeft,
                [&] { return (*trainer)->inner_state(setup.spec.recovery.precision); });
  admin.stop();
  *why = hub.why();
  return code;
}

std::string default_reason(ExitCode code) {
  switch (code) {
    case ExitCode::kFinished:
      return "the run is finished";
    case ExitCode::kLeft:
      return "left on request";
    case ExitCode::kInternal:
    case ExitCode::kUsage:
    case ExitCode::kFenced:
    case ExitCode::kConfigRefused:
    case ExitCode::kDataUnreadable:
    case ExitCode::kWatchdog:
      break;
  }
  return "failed";
}

std::optional<double> cgroup_quota() {
  double quota = 0;
  double period = 0;
  std::string first;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max");
      v2 >> first >> period && first != "max" && period > 0)
    return std::strtod(first.c_str(), nullptr) / period;
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

}  // namespace

int default_threads() {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto quota = cgroup_quota();
  return quota ? std::clamp(static_cast<int>(std::ceil(*quota)), 1, cores) : cores;
}

std::string termination_path(const Flags& flags) {
  if (!flags.termination_log.empty()) return flags.termination_log;
  if (const char* path = std::getenv("ARCHIPELAGO_TERMINATION_LOG");
      path != nullptr && *path != '\0')
    return path;
  constexpr const char* kDefault = "/dev/termination-log";
  return ::access(kDefault, W_OK) == 0 ? kDefault : "";
}

void write_termination(const std::string& path, const std::string& message) {
  if (path.empty()) return;
  constexpr std::size_t kMax = 4096;  // what kubelet keeps
  std::ofstream(path, std::ios::trunc) << message.substr(0, kMax);
}

ExitCode run_daemon(const Flags& flags, const DaemonHooks& hooks, const std::stop_token& stop,
                    const Logger& log) {
  std::string why;
  ExitCode code = ExitCode::kInternal;
  auto setup = set_up(flags, hooks);
  if (!setup) {
    code = setup.error().first;
    why = setup.error().second;
  } else {
    log.info("learner starts", {{"parameters", setup->layout.elements()},
                                {"fragments", setup->fragments.count()},
                                {"sequences", setup->train.sequences()},
                                {"outer", setup->outer.text()}});
    code = live(*setup, flags, hooks, stop, log, &why);
  }
  if (why.empty()) why = default_reason(code);
  if (code == ExitCode::kFinished || code == ExitCode::kLeft) {
    log.info("learner ends", {{"exit_code", static_cast<int>(code)}, {"reason", why}});
  } else {
    log.error("learner ends", {{"exit_code", static_cast<int>(code)}, {"reason", why}});
  }
  write_termination(termination_path(flags), why);
  return code;
}

}  // namespace archipelago::learner
