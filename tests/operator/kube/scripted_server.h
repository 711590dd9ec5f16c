#pragma once
// An API server that says and does what a test asks for, on a raw socket: heads, chunks, silence,
// and ends in the middle.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "operator/kube/kube_config.h"

namespace archipelago::op {

struct SeenRequest {
  std::string method;
  std::string target;
  std::multimap<std::string, std::string> headers;  // names in lower case
  std::string body;
  int connection = 0;
  [[nodiscard]] std::string header(const std::string& name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? "" : it->second;
  }
  [[nodiscard]] bool has(const std::string& part) const {
    return target.find(part) != std::string::npos;
  }
};

// What a handler answers with; after it returns the connection is kept unless `drop` was called.
class Peer {
 public:
  Peer(int fd, std::atomic<bool>& stopping) : fd_(fd), stopping_(stopping) {}
  bool send(const std::string& bytes);
  void reply(int status, const std::string& body, const std::string& extra_heads = "");
  void json(const nlohmann::json& body) { reply(200, body.dump()); }
  void status(int code, const std::string& reason, const std::string& message = "said by the test",
              const std::string& extra_heads = "");
  // A chunked stream: begin, any number of chunks, end.
  bool begin_stream();
  bool chunk(const std::string& bytes);
  bool event(const std::string& type, const nlohmann::json& object);
  void end_stream();
  void hold();  // silence, until the peer goes or the server stops
  void drop() { dropped_ = true; }
  [[nodiscard]] bool dropped() const { return dropped_; }

 private:
  int fd_;
  std::atomic<bool>& stopping_;
  bool dropped_ = false;
};

class ScriptedServer {
 public:
  using Handler = std::function<void(const SeenRequest&, Peer&)>;
  explicit ScriptedServer(Handler handler, bool ipv6 = false);
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] KubeAccess access() const;
  [[nodiscard]] std::vector<SeenRequest> seen() const;
  [[nodiscard]] int count(const std::string& method, const std::string& part = "") const;

 private:
  void accept_all();
  void serve(int fd, int number);

  Handler handler_;
  const bool ipv6_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::vector<SeenRequest> seen_;
  struct Connection {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  std::vector<Connection> connections_;  // of the accepting thread alone, until it has ended
  std::thread acceptor_;
};

}  // namespace archipelago::op
