#include "outer-optimizer/store/worker_pool.h"

#include <algorithm>

#include "common/base/check.h"

namespace archipelago::outer {

WorkerPool::WorkerPool(int threads) {
  ARCH_CHECK(threads >= 1, << threads);
  for (int i = 1; i < threads; ++i)
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
}

WorkerPool::~WorkerPool() {
  for (auto& thread : threads_) thread.request_stop();
  threads_.clear();
}

void WorkerPool::drain() {
  for (;;) {
    const std::function<void(std::size_t, std::size_t)>* body = nullptr;
    std::size_t begin = 0;
    std::size_t end = 0;
    {
      const std::lock_guard lock(mutex_);
      if (body_ == nullptr || next_ >= count_) return;
      body = body_;
      begin = next_;
      end = std::min(count_, begin + grain_);
      next_ = end;
      ++running_;
    }
    (*body)(begin, end);
    {
      const std::lock_guard lock(mutex_);
      --running_;
      if (running_ == 0 && next_ >= count_) done_.notify_all();
    }
  }
}

void WorkerPool::work(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [this] { return body_ != nullptr && next_ < count_; })) return;
    }
    drain();
  }
}

void WorkerPool::run(std::size_t count, std::size_t grain,
                     const std::function<void(std::size_t, std::size_t)>& body) {
  if (count == 0) return;
  {
    const std::lock_guard lock(mutex_);
    ARCH_CHECK(body_ == nullptr, << "one caller at a time");
    body_ = &body;
    next_ = 0;
    count_ = count;
    grain_ = std::max<std::size_t>(1, grain);
  }
  wake_.notify_all();
  drain();
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0 && next_ >= count_; });
  body_ = nullptr;
}

}  // namespace archipelago::outer
