#pragma once
// The thread that owns the listening socket and every connection without a complete request.
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/http/server_conn.h"

namespace archipelago::http {

class Poller {
 public:
  // `dispatch` takes a connection whose head (and small body) is complete in conn->in.
  using Dispatch = std::function<void(std::unique_ptr<Conn>)>;
  Poller(const ServerOptions& options, Counters& counters, Logger log, Dispatch dispatch);
  ~Poller();

  [[nodiscard]] Status start(int listen_fd);
  // Closes what it owns and joins. Connections given back later are closed.
  void stop();
  // From workers: after a reply, to wait for the next request, or to drain (our side already shut).
  void give_back(std::unique_ptr<Conn> conn, bool drain);

 private:
  void run(const std::stop_token& stop);
  void accept_all();
  void adopt(std::unique_ptr<Conn> conn);
  void on_readable(int fd);
  // What to do with a connection after its bytes changed: keep waiting, or it left this thread.
  enum class Next { kWait, kGone };
  Next advance(std::unordered_map<int, std::unique_ptr<Conn>>::iterator it);
  void refuse(std::unordered_map<int, std::unique_ptr<Conn>>::iterator it, int status,
              const std::string& message);
  bool receive(Conn& conn, bool* closed);
  void take_returned();
  void expire();
  void drop(std::unordered_map<int, std::unique_ptr<Conn>>::iterator it);
  void wake();

  const ServerOptions& options_;
  Counters& counters_;
  Logger log_;
  Dispatch dispatch_;
  UniqueFd epoll_;
  UniqueFd event_;
  int listen_fd_ = -1;
  bool accept_paused_ = false;
  std::unordered_map<int, std::unique_ptr<Conn>> conns_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Conn>> returned_;  // guarded by mutex_
  bool closed_ = false;                          // guarded by mutex_
  std::jthread thread_;
};

}  // namespace archipelago::http
