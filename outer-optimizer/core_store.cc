// The core's side of the store's work: layout, seed, merges, checkpoints, the end.
#include <array>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "common/wire/messages_json.h"
#include "outer-optimizer/core_engine.h"

namespace archipelago::outer {
namespace {

constexpr Duration kRetry = std::chrono::seconds(1);
constexpr Duration kStoreLimit = std::chrono::seconds(120);

// Waits for a job on the store's thread.
Status wait_for(std::future<Status> answer) {
  if (answer.wait_for(kStoreLimit) != std::future_status::ready) {
    return fail(ErrorKind::kUnavailable, "the store is busy");
  }
  try {
    return answer.get();
  } catch (const std::future_error&) {
    return fail(ErrorKind::kUnavailable, "the outer optimizer is stopping");
  }
}

diloco::tape::Round tape_round(const MergeJob& job, const OuterRules& rules) {
  diloco::tape::Round round;
  round.t = job.t;
  round.fragment = job.fragment;
  round.rules = {rules.step.learning_rate, rules.step.momentum, rules.step.nesterov,
                 rules.radial.other, std::string(codec::name(rules.downlink))};
  for (const auto& member : job.members)
    round.members.push_back({member.unit, member.incarnation, member.attempt,
                             member.upload->counters.tokens, member.upload->counters.steps});
  return round;
}

}  // namespace

void record_published(const Store& store, GlobalStep version, TapeLog& tape) {
  const auto versions = store.versions();
  for (std::size_t i = 0; i < versions.size(); ++i) {
    const FragmentId p(static_cast<std::int32_t>(i));
    if (versions[i] < version || tape.knows(versions[i], p.value)) continue;
    if (const auto published = store.published_digest(p))
      tape.published(published->version, p.value, published->xxh3);
  }
}

Status CoreEngine::put_layout(diloco::Layout layout, Assets assets) {
  auto promise = std::make_shared<std::promise<Status>>();
  auto answer = promise->get_future();
  auto work = [this, promise, layout = std::move(layout),
               assets = std::move(assets)](Store& store) mutable {
    if (store.has_layout()) {
      const std::string difference = diloco::first_difference(store.layout(), layout);
      promise->set_value(difference.empty() ? Status()
                                            : fail(ErrorKind::kRefused, "layout: " + difference));
      return;
    }
    if (auto set = store.set_layout(std::move(layout), std::move(assets)); !set) {
      promise->set_value(std::move(set));
      return;
    }
    // The layout stays as it is from here on: the core's thread may read it.
    const Store* kept = &store;
    post_internal([this, promise, kept](TimePoint) {
      layout_known(kept->layout(), kept->fragmentation());
      promise->set_value(Status());
    });
  };
  if (!store_.post(std::move(work))) return fail(ErrorKind::kUnavailable, "the store is busy");
  return wait_for(std::move(answer));
}

Status CoreEngine::seed_allowed(const diloco::UnitKey& who) {
  return ask<void>([this, who](TimePoint now) -> Status {
    if (auto known = core_.reply(who, now); !known) return fail(known.error());
    if (frames_ready_ || seed_committing_)
      return fail(ErrorKind::kConflict, "the run is seeded already");
    if (!seeder_ || *seeder_ != who)
      return fail(ErrorKind::kConflict, "another unit was asked to seed");
    return {};
  });
}

Status CoreEngine::stage_seed(const diloco::UnitKey& who, FragmentId fragment, Buffer values) {
  auto promise = std::make_shared<std::promise<Status>>();
  auto answer = promise->get_future();
  auto held = std::make_shared<Buffer>(std::move(values));
  auto work = [this, promise, who, fragment, held](Store& store) {
    if (store.seeded()) {
      promise->set_value(fail(ErrorKind::kConflict, "the run is seeded already"));
      return;
    }
    if (auto set = store.seed_fragment(fragment, GlobalStep(0), held->floats()); !set) {
      promise->set_value(std::move(set));
      return;
    }
    post_internal([this, promise, who, fragment](TimePoint now) {
      seed_staged(who, fragment, now,
                  [promise](const Status& durable) { promise->set_value(durable); });
    });
  };
  if (!store_.post(std::move(work))) return fail(ErrorKind::kUnavailable, "the store is busy");
  return wait_for(std::move(answer));
}

Status CoreEngine::rebuild_allowed(const diloco::UnitKey& who, FragmentId fragment) {
  return ask<void>([this, who, fragment](TimePoint) -> Status {
    return core_.rebuild_allowed(who, fragment.value);
  });
}

Status CoreEngine::check_lineage(std::int64_t lineage) {
  return ask<void>([this, lineage](TimePoint) -> Status { return core_.check_lineage(lineage); });
}

Status CoreEngine::stage_base(const diloco::UnitKey& who, FragmentId fragment, GlobalStep version,
                              Buffer values) {
  auto promise = std::make_shared<std::promise<Status>>();
  auto answer = promise->get_future();
  auto held = std::make_shared<Buffer>(std::move(values));
  auto work = [this, promise, who, fragment, version, held](Store& store) {
    if (auto set = store.seed_fragment(fragment, version, held->floats()); !set) {
      promise->set_value(std::move(set));
      return;
    }
    post_internal([this, promise, who, fragment, version](TimePoint now) {
      auto last = core_.rebuild_staged(who, fragment.value, version, now);
      if (!last) return promise->set_value(fail(last.error()));
      log_.info("base taken", {{"unit", who.unit}, {"fragment", fragment.value}});
      // Before drain() posts the state that says so.
      if (*last) commit_rebuilt(core_.state().committed, core_.versions());
      drain(now);
      release([promise](const Status& durable) { promise->set_value(durable); });
    });
  };
  if (!store_.post(std::move(work))) return fail(ErrorKind::kUnavailable, "the store is busy");
  return wait_for(std::move(answer));
}

void CoreEngine::commit_rebuilt(GlobalStep committed, std::vector<GlobalStep> versions) {
  const bool posted =
      store_.post([this, committed, versions, state = wire::encode(core_.state())](Store& store) {
        Status status = store.commit_rebuilt(committed, versions, state);
        post_internal([this, committed, versions, status = std::move(status)](TimePoint) {
          if (status) {
            frames_ready_ = true;
            core_.checkpoint_written(committed);
            log_.info("rebuilt from the learners' bases", {{"global_step", committed.value}});
          } else if (status.error().kind == ErrorKind::kNoSpace) {
            set_no_space(true, status.error().message);
            retry_in(kRetry, [this, committed, versions](TimePoint) {
              commit_rebuilt(committed, versions);
            });
          } else {
            fatal(status.error().with_context("rebuild"));
          }
        });
      });
  if (!posted) fatal({ErrorKind::kInternal, "the store takes no more work"});
}

void CoreEngine::raise_epoch(std::int64_t epoch) {
  const bool posted = store_.post([this, epoch](Store& store) {
    if (auto raised = store.raise_epoch(epoch); !raised)
      post_internal([this, raised = std::move(raised)](TimePoint) {
        fatal(raised.error().with_context("epoch"));
      });
  });
  if (!posted) fatal({ErrorKind::kInternal, "the store takes no more work"});
}

void CoreEngine::seed_staged(const diloco::UnitKey& who, FragmentId fragment, TimePoint now,
                             Release done) {
  if (!seeder_ || *seeder_ != who) {
    core_.rebuild_unstaged(fragment.value);  // its bytes were staged over a base
    done(fail(ErrorKind::kConflict, "another unit was asked to seed"));
    return;
  }
  staged_.insert(fragment.value);
  if (static_cast<std::int32_t>(staged_.size()) == options_.core.fragments && !seed_committing_) {
    if (auto seeded = core_.seeded(who, now); !seeded) {
      done(fail(seeded.error()));
      return;
    }
    log_.info("seeded", {{"unit", who.unit}});
    seed_committing_ = true;
    commit_seed();  // before drain() posts the state that says so
    drain(now);
  }
  release(std::move(done));
}

void CoreEngine::commit_seed() {
  const bool posted = store_.post([this, state = wire::encode(core_.state())](Store& store) {
    Status status = store.commit_seed(GlobalStep(0), state);
    if (status) record_published(store, GlobalStep(0), tape_);
    post_internal([this, status = std::move(status)](TimePoint) {
      if (status) {
        frames_ready_ = true;
        core_.checkpoint_written(GlobalStep(0));
      } else if (status.error().kind == ErrorKind::kNoSpace) {
        set_no_space(true, status.error().message);
        retry_in(kRetry, [this](TimePoint) { commit_seed(); });
      } else {
        fatal(status.error().with_context("seed"));
      }
    });
  });
  if (!posted) fatal({ErrorKind::kInternal, "the store takes no more work"});
}

// --- merges
// -------------------------------------------------------------------------------------------------------

void CoreEngine::start_merge(diloco::StartMerge merge) {
  auto job = std::make_shared<MergeJob>();
  job->t = merge.t;
  job->fragment = merge.fragment;
  for (const auto& member : merge.members) {
    UploadPtr upload = uploads_.find(member.key);
    if (upload == nullptr) {
      log_.error("an upload that counts is not stored",
                 {{"unit", member.key.who.unit}, {"global_step", merge.t.value}});
      continue;
    }
    job->bytes_up += upload->bytes;
    job->members.push_back(
        {member.key.who.unit, std::move(upload), member.key.who.incarnation, member.key.attempt});
  }
  for (const auto& key : merge.excluded) {
    if (const UploadPtr upload = uploads_.find(key)) job->bytes_up += upload->bytes;
    job->excluded.push_back(key.who.unit);
  }
  job->core_state = wire::encode(merge.state);
  post_merge(job);
}

void CoreEngine::post_merge(const std::shared_ptr<MergeJob>& job) {
  const bool posted = store_.post([this, job](Store& store) {
    // First the tape: no round is committed that is not on it.
    if (job->fragment != diloco::kNoFragment) tape_.round(tape_round(*job, options_.store.rules));
    const auto report = std::make_shared<MergeReport>(run_merge(store, *job));
    post_internal([this, job, report](TimePoint now) { merged(job, *report, now); });
    if (!report->status) return;
    // The digest is a pass over the fragment that no learner needs to wait for.
    std::uint64_t digest = 0;
    if (job->fragment != diloco::kNoFragment) {
      if (const auto published = store.published_digest(FragmentId(job->fragment))) {
        digest = published->xxh3;
        tape_.published(job->t, job->fragment, digest);
      }
    }
    post_internal([this, job, report, digest](TimePoint now) {
      write_metrics_line(*job, *report, digest, core_.status(now));
    });
  });
  if (!posted) fatal({ErrorKind::kInternal, "the store takes no more work"});
}

void CoreEngine::merged(const std::shared_ptr<MergeJob>& job, const MergeReport& report,
                        TimePoint now) {
  if (!report.status) {
    const Error& error = report.status.error();
    if (error.kind == ErrorKind::kNoSpace) {
      set_no_space(true, error.message);
      core_.merge_failed(job->t, now);
    } else if ((error.kind == ErrorKind::kRefused || error.kind == ErrorKind::kInvalid) &&
               !job->members.empty()) {
      // Each upload was fine by itself and together they are not: the round merges nothing, and
      // says so.
      log_.error("a round's uploads cannot be merged",
                 {{"global_step", job->t.value}, {"why", error.message}});
      for (const auto& member : job->members) job->excluded.push_back(member.unit);
      job->members.clear();
      post_merge(job);
    } else {
      fatal(error.with_context("merge of global step " + std::to_string(job->t.value)));
    }
    return;
  }
  if (no_space_) set_no_space(false, "");
  core_.committed(job->t, job->bytes_up, now);
  if (job->fragment != diloco::kNoFragment) metrics_.merged(report, job->members.size());
  publish_status(now);
  checkpoint_if_due(
      job->t);  // before drain() posts the next merge: a checkpoint is exact at its step
  drain(now);
}

// The figures of a run: a line for each global step.
void CoreEngine::write_metrics_line(const MergeJob& job, const MergeReport& report,
                                    std::uint64_t published_xxh3,
                                    const diloco::StatusDocument& status) {
  nlohmann::json line{{"t", job.t.value},
                      {"time", format_wall(clock_.wall())},
                      {"fragment", job.fragment},
                      {"participants", job.members.size()},
                      {"members", nlohmann::json::array()},
                      {"excluded", job.excluded},
                      {"tokens", status.tokens},
                      {"mergedTokens", status.merged_tokens},
                      {"bytesUp", status.bytes_up},
                      {"bytesDown", status.bytes_down},
                      {"frameBytes", report.outcome.frame_bytes},
                      {"mergeSeconds", report.outcome.merge_seconds},
                      {"journalSeconds", report.outcome.journal_seconds},
                      {"publishSeconds", report.outcome.publish_seconds}};
  for (const auto& member : job.members) {
    line["members"].push_back({{"unit", member.unit},
                               {"tokens", member.upload->counters.tokens},
                               {"steps", member.upload->counters.steps}});
  }
  if (published_xxh3 != 0) {
    std::array<char, 17> hex{};
    std::snprintf(hex.data(), hex.size(), "%016llx",
                  static_cast<unsigned long long>(published_xxh3));
    line["published"] = hex.data();
  }
  // NaN has no place in JSON: what is unknown is left out.
  if (std::isfinite(status.loss)) line["loss"] = status.loss;
  if (std::isfinite(status.validation_loss)) {
    line["validationLoss"] = status.validation_loss;
    line["validationStep"] = status.validation_step.value;
  }
  std::int64_t stepping = 0;
  for (const auto& unit : status.units) stepping += unit.phase == "Stepping" ? 1 : 0;
  line["stepping"] = stepping;
  if (auto written = metrics_.tape(line); !written) {
    log_.warn("metrics.jsonl not written", {{"why", written.error().message}});
  }
}

// --- checkpoints
// --------------------------------------------------------------------------------------------------

void CoreEngine::checkpoint_if_due(GlobalStep t) {
  if (t.value % options_.checkpoint_every == 0) checkpoint_due_ = true;
  if (!checkpoint_due_) return;
  checkpoint_due_ = false;
  const bool posted = store_.post([this, t, state = wire::encode(core_.state())](Store& store) {
    auto started = store.start_checkpoint(t, state);
    if (started && *started) return;
    post_internal([this, t, started = std::move(started)](TimePoint) {
      checkpoint_due_ = true;  // with the next commit
      if (!started) checkpoint_ended({t, fail(started.error()), 0});
    });
  });
  if (!posted) fatal({ErrorKind::kInternal, "the store takes no more work"});
}

void CoreEngine::checkpoint_ended_later(CheckpointResult result) {
  post_internal([this, result = std::move(result)](TimePoint) { checkpoint_ended(result); });
}

void CoreEngine::note_recovery(const RecoveryReport& report) {
  if (report.found) core_.checkpoint_written(report.checkpoint_step);
  if (report.rolled_back) {  // what was published behind the damage is published anew
    std::string message =
        "back to step " +
        std::to_string(std::max<std::int64_t>(
            0, report.without_gradients ? report.exact.value : report.committed.value));
    for (const auto& problem : report.problems) message += "; " + problem;
    core_.rolled_back(message);
    core_.set_condition(
        {"RolledBack", "True", report.without_gradients ? "NoJournal" : "DamagedJournal", message});
  }
}

void CoreEngine::checkpoint_ended(const CheckpointResult& result) {
  metrics_.checkpoint(result);
  if (result.status) {
    core_.checkpoint_written(result.step);
    core_.set_condition({"CheckpointStale", "False", "Written",
                         "checkpoint of step " + std::to_string(result.step.value)});
    log_.info("checkpoint written",
              {{"global_step", result.step.value}, {"seconds", result.seconds}});
    return;
  }
  checkpoint_due_ = true;
  log_.warn("checkpoint failed",
            {{"global_step", result.step.value}, {"why", result.status.error().describe()}});
  core_.set_condition(
      {"CheckpointStale", "True",
       result.status.error().kind == ErrorKind::kNoSpace ? "NoSpace" : "WriteFailed",
       result.status.error().message});
}

// --- the end
// ------------------------------------------------------------------------------------------------------

void CoreEngine::publish_final(GlobalStep version) {
  diloco::SyncerState state = core_.state();
  const std::string before = wire::encode(state);
  state.final_published = true;
  const bool posted =
      store_.post([this, version, before, text = wire::encode(state)](Store& store) {
        // What a journal without gradients can't bring back must be in a checkpoint first.
        Status status;
        if (!options_.store.journal_gradients)
          status = store.checkpoint_now(GlobalStep(version.value - 1), before);
        if (status) status = store.publish_final(version, text);
        if (status) {
          tape_.final_version(version);
          record_published(store, version, tape_);
          tape_.flush();
        }
        post_internal([this, version, status = std::move(status)](TimePoint now) {
          if (status) {
            core_.final_published(now);
          } else if (status.error().kind == ErrorKind::kNoSpace) {
            set_no_space(true, status.error().message);
            retry_in(kRetry, [this, version](TimePoint) { publish_final(version); });
          } else {
            fatal(status.error().with_context("final publication"));
          }
        });
      });
  if (!posted) fatal({ErrorKind::kInternal, "the store takes no more work"});
}

void CoreEngine::write_model() {
  const bool posted = store_.post([this](Store& store) {
    Status status = store.export_model(options_.flags.data_dir / "model");
    post_internal([this, status = std::move(status)](TimePoint now) {
      if (status) {
        log_.info("model written");
        core_.model_written(now);
        return;
      }
      log_.warn("model not written", {{"why", status.error().describe()}});
      core_.set_condition({"ModelNotWritten", "True", "WriteFailed", status.error().message});
      retry_in(5 * kRetry, [this](TimePoint) { write_model(); });
    });
  });
  if (!posted) fatal({ErrorKind::kInternal, "the store takes no more work"});
}

}  // namespace archipelago::outer
