#pragma once
// A few threads that run the same function over a range of indices. Work is split by elements,
// never by learner, so results do not depend on the number of threads.
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace archipelago::outer {

class WorkerPool {
 public:
  // threads >= 1 counts the caller; threads - 1 are started.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Calls body(begin, end) for disjoint ranges that cover [0, count), each at most `grain` long;
  // returns when all are done. One caller at a time.
  void run(std::size_t count, std::size_t grain,
           const std::function<void(std::size_t, std::size_t)>& body);

 private:
  void work(const std::stop_token& stop);
  void drain();

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable done_;
  const std::function<void(std::size_t, std::size_t)>* body_ =
      nullptr;  // guarded by mutex_, as all below
  std::size_t next_ = 0;
  std::size_t count_ = 0;
  std::size_t grain_ = 1;
  std::size_t running_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace archipelago::outer
