#pragma once
// SIGTERM and SIGINT as a stop request. Construct first thing in main, before any thread: it blocks
// both signals in the calling thread (children of it inherit the mask: spawn with an empty one) and
// ignores SIGPIPE.
#include <functional>
#include <thread>

namespace archipelago {

class SignalWaiter {
 public:
  SignalWaiter();  // blocks the signals
  ~SignalWaiter();
  SignalWaiter(const SignalWaiter&) = delete;
  SignalWaiter& operator=(const SignalWaiter&) = delete;

  // Calls on_stop(signal) on the first signal; a second one ends the process at once with 128 +
  // signal.
  void start(std::function<void(int)> on_stop);

 private:
  std::jthread thread_;
};

}  // namespace archipelago
