#include "common/base/signals.h"

#include <csignal>
#include <ctime>
#include <unistd.h>

namespace archipelago {

namespace {
sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}
}  // namespace

SignalWaiter::SignalWaiter() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

SignalWaiter::~SignalWaiter() = default;

void SignalWaiter::start(std::function<void(int)> on_stop) {
  thread_ = std::jthread([on_stop = std::move(on_stop)](std::stop_token stop) {
    const sigset_t set = stop_signals();
    int seen = 0;
    while (!stop.stop_requested()) {
      const timespec wait{0, 100'000'000};
      const int signal = sigtimedwait(&set, nullptr, &wait);
      if (signal <= 0) continue;
      if (seen++ > 0) _exit(128 + signal);
      on_stop(signal);
    }
  });
}

}  // namespace archipelago
