#include "outer-optimizer/store/checkpoint_task.h"

#include <exception>
#include <utility>

#include "outer-optimizer/store/journal.h"

namespace archipelago::outer {

CheckpointTask::CheckpointTask(FileOps& ops, const FragmentStore& store, Plan plan)
    : ops_(ops),
      store_(store),
      plan_(std::move(plan)),
      written_(static_cast<std::size_t>(store.fragmentation().count()), false),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

CheckpointTask::~CheckpointTask() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void CheckpointTask::run(const std::stop_token& stop) {
  const SystemClock clock;
  const TimePoint begin = clock.now();
  Status status;
  try {
    status = write(stop);
  } catch (const std::exception& error) {
    status = fail(ErrorKind::kInternal, std::string("checkpoint: ") + error.what());
  }
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
  seconds_ = to_seconds(clock.now() - begin);
  ended_ = true;
  changed_.notify_all();
}

std::optional<FragmentId> CheckpointTask::next() {
  const std::lock_guard lock(mutex_);
  if (urgent_ && !written_[static_cast<std::size_t>(urgent_->value)]) return urgent_;
  for (const FragmentId p : plan_.order)
    if (!written_[static_cast<std::size_t>(p.value)]) return p;
  return std::nullopt;
}

Status CheckpointTask::write(const std::stop_token& stop) {
  CheckpointWriter writer(ops_, plan_.checkpoints, plan_.info);
  Status status = [&]() -> Status {
    ARCH_TRY_VOID(writer.begin());
    while (const auto p = next()) {
      if (stop.stop_requested()) return fail(ErrorKind::kCancelled, "checkpoint stopped");
      // The owner leaves p alone until it is marked as written.
      const SharedBuffer published = store_.published(*p);
      ARCH_TRY_VOID(writer.write_fragment(*p, store_.version(*p), store_.master(*p),
                                          store_.momentum(*p), published->floats()));
      const std::lock_guard lock(mutex_);
      written_[static_cast<std::size_t>(p->value)] = true;
      changed_.notify_all();
    }
    return writer.finish();
  }();
  if (status) {
    // Durable: what lies before it may go. Failing to remove it is not a failure of the checkpoint.
    static_cast<void>(Journal::free_below(ops_, plan_.journal, plan_.info.journal_generation));
    static_cast<void>(prune_checkpoints(ops_, plan_.checkpoints, plan_.keep, plan_.keep_every));
  }
  return status;
}

void CheckpointTask::wait_for(FragmentId p) {
  std::unique_lock lock(mutex_);
  urgent_ = p;
  changed_.wait(lock, [&] { return ended_ || written_[static_cast<std::size_t>(p.value)]; });
}

bool CheckpointTask::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

Status CheckpointTask::result() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

}  // namespace archipelago::outer
