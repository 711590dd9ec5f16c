#include "common/wire/messages_json.h"

#include <string>

#include <catch2/catch.hpp>

using namespace archipelago;
using namespace archipelago::diloco;

namespace {
const UnitKey kWho{"us-east-0", Incarnation(3), "0123456789abcdef0123456789abcdef"};

ProgressReport report() {
  ProgressReport m;
  m.who = kWho;
  m.news = 77;
  m.phase = LearnerPhase::kStepping;
  m.local_step = LocalStep(1234);
  m.step_seconds = 0.25;
  m.tokens = 5'000'000'000;
  m.seconds_in_steps = 300.5;
  m.loss = 2.125;
  m.contributes = {{GlobalStep(7), 1}, {GlobalStep(8), 2}};
  m.declines = {GlobalStep(9)};
  m.consumed = {{12, 256}, {13, 40}};
  m.holds_all = true;
  m.applied = GlobalStep(6);
  m.validation = ValidationReport{GlobalStep(5), 2.5, 1000, false};
  return m;
}
}  // namespace

TEST_CASE("progress reports survive their JSON form") {
  const auto back = wire::parse_progress(wire::encode(report()));
  REQUIRE(back);
  CHECK(back->who == kWho);
  CHECK(back->tokens == 5'000'000'000);
  CHECK(back->contributes == report().contributes);
  CHECK(back->declines == report().declines);
  CHECK(back->consumed == report().consumed);
  CHECK(back->loss == 2.125);
  CHECK(back->validation->loss == 2.5);
}

TEST_CASE("a loss that is not finite is left out, and reads back as no value") {
  auto m = report();
  m.loss = kNoValue;
  const auto back = wire::parse_progress(wire::encode(m));
  REQUIRE(back);
  CHECK(std::isnan(back->loss));
}

TEST_CASE("replies survive their JSON form") {
  HelloReply m;
  m.run_id = "run";
  m.progress.seed = true;
  m.progress.epoch = 4;
  m.progress.news = (4LL << 32) + 9;
  m.progress.phase = RunPhase::kRunning;
  m.progress.committed = GlobalStep(41);
  m.progress.rounds = {{GlobalStep(42), 18, GlobalStep(18), true},
                       {GlobalStep(43), kNoFragment, kNoVersion, false}};
  m.progress.outcomes = {{GlobalStep(41), true}};
  m.progress.versions = {GlobalStep(24), GlobalStep(1)};
  m.progress.leases = {{5, 10, 256}};
  m.progress.validate = GlobalStep(50);
  m.progress.donate = RecoveryTask{"e4-1", "eu-west-1"};
  const auto back = wire::parse_hello_reply(wire::encode(m));
  REQUIRE(back);
  CHECK(back->progress.seed);
  CHECK(back->progress.rounds == m.progress.rounds);
  CHECK(back->progress.versions == m.progress.versions);
  CHECK(back->progress.leases == m.progress.leases);
  CHECK(back->progress.validate == m.progress.validate);
  CHECK(back->progress.donate->peer == "eu-west-1");
  CHECK_FALSE(back->progress.recover.has_value());
}

TEST_CASE("the durable state survives its JSON form") {
  SyncerState s;
  s.epoch = 3;
  s.lineage = 77;
  s.committed = GlobalStep(99);
  s.seeded = true;
  s.layout_digest = std::string(64, 'a');
  s.dataset_sequences = 1000;
  auto& id = s.units["a-0"];
  id.incarnation = Incarnation(2);
  id.session = kWho.session;
  id.current.tokens = 500;
  s.ledger.emplace();
  s.ledger->next_block = 9;
  s.ledger->held.push_back({"a-0", Incarnation(2), 8, 30});
  s.merged_tokens = 0.1 + 0.2;
  s.recent[GlobalStep(99)] = {GlobalStep(99), 3, {{kWho, GlobalStep(99), 2}}, {}};
  const auto back = wire::parse_state(wire::encode(s));
  REQUIRE(back);
  CHECK(back->units.at("a-0").current.tokens == 500);
  CHECK(back->ledger == s.ledger);
  CHECK(back->lineage == 77);
  REQUIRE(back->recent.contains(GlobalStep(99)));
  CHECK(back->recent.at(GlobalStep(99)).members == s.recent[GlobalStep(99)].members);
  CHECK(back->merged_tokens == s.merged_tokens);  // shortest round-trip digits: the same bits
}

TEST_CASE("settings survive their JSON forms, and a wrong field is named") {
  LiveSettings settings{7, 3, GraceKind::kSlack, 2.5, 0.25, GlobalStep(900)};
  const auto back = wire::parse_settings(wire::encode(settings));
  REQUIRE(back);
  CHECK(*back == settings);
  SyncerState s;
  s.settings = SettingsRecord{4, "uid", settings};
  const auto state = wire::parse_state(wire::encode(s));
  REQUIRE(state);
  REQUIRE(state->settings);
  CHECK(state->settings->epoch == 4);
  CHECK(state->settings->source == "uid");
  CHECK(state->settings->settings == settings);
  StatusDocument status;
  status.settings = settings;
  CHECK(wire::parse_status(wire::encode(status))->settings == settings);

  CHECK(wire::parse_settings("{").error().kind == ErrorKind::kInvalid);
  const auto [from, to, names] = GENERATE(table<std::string, std::string, std::string>({
      {"\"quorum\":3", "\"quorum\":0", "settings.quorum: given 0, allowed 1 to 256"},
      {"\"quorum\":3", "\"quorum\":\"3\"", "settings.quorum must be an integer"},
      {"\"quorum\":3", "\"K\":3", "settings.quorum is missing"},
      {"slack", "fair", "settings.grace.rule: given 'fair', allowed steps, slack, off"},
      {"\"steps\":2.5", "\"steps\":-1",
       "settings.grace.steps: given -1, allowed more than 0, at most 1000"},
      {"0.25", "1.5", "settings.grace.fraction: given 1.5, allowed more than 0, at most 1"},
      {"\"generation\":7", "\"generation\":0", "settings.generation: given 0"},
      {"900", "0", "settings.budget.globalSteps: given 0"},
  }));
  std::string text = wire::encode(settings);
  REQUIRE(text.find(from) != std::string::npos);
  text.replace(text.find(from), from.size(), to);
  const auto wrong = wire::parse_settings(text);
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().kind == ErrorKind::kRefused);
  INFO(wrong.error().message);
  CHECK(wrong.error().message.find(names) != std::string::npos);
}

TEST_CASE("what a learner knows of the run survives its JSON form, and a wrong field is named") {
  HelloRequest hello;
  hello.who = kWho;
  hello.datacenter = "us-east";
  hello.layout_digest = std::string(64, 'a');
  hello.dataset_sequences = 1000;
  hello.dataset_digest = "d";
  hello.sequences_per_step = 8;
  hello.standing = {4, 1234567890123456789, GlobalStep(88), 70, {GlobalStep(88), GlobalStep(87)}};
  const auto back = wire::parse_hello(wire::encode(hello));
  REQUIRE(back);
  CHECK(back->standing.epoch == 4);
  CHECK(back->standing.lineage == 1234567890123456789);
  CHECK(back->standing.committed == GlobalStep(88));
  CHECK(back->standing.lease_mark == 70);
  CHECK(back->standing.bases == hello.standing.bases);
  auto progress = report();
  progress.standing = hello.standing;
  CHECK(wire::parse_progress(wire::encode(progress))->standing.lineage == hello.standing.lineage);

  const auto [from, to, names] = GENERATE(table<std::string, std::string, std::string>({
      {"\"epoch\":4", "\"epoch\":-1", "standing.epoch: given -1, allowed 0 to 16777216"},
      {"\"epoch\":4", "\"epoch\":16777217", "standing.epoch: given 16777217"},
      {"\"epoch\":4", "\"epoch\":\"4\"", "standing.epoch must be an integer"},
      {"\"epoch\":4", "\"time\":4", "standing.epoch is missing"},
      {"\"lineage\":1234567890123456789", "\"lineage\":-3", "standing.lineage: given -3"},
      {"\"lineage\":1234567890123456789", "\"lineage\":18446744073709551615",
       "standing.lineage is too large"},
      {"\"committed\":88", "\"committed\":-1", "standing.committed"},
      {"\"committed\":88", "\"committed\":1.5", "standing.committed must be an integer"},
      {"\"leaseMark\":70", "\"leaseMark\":-1", "standing.leaseMark: given -1"},
      {"\"leaseMark\":70", "\"leaseMark\":1099511627777",
       "standing.leaseMark: given 1099511627777"},
      {"[88,87]", "{}", "standing.bases must be a list"},
      {"[88,87]", "[88,\"87\"]", "standing.bases"},
      {"[88,87]", "[88,-2]", "standing.bases"},
  }));
  std::string text = wire::encode(hello);
  REQUIRE(text.find(from) != std::string::npos);
  text.replace(text.find(from), from.size(), to);
  const auto wrong = wire::parse_hello(text);
  CAPTURE(from, to);
  REQUIRE_FALSE(wrong);
  INFO(wrong.error().message);
  CHECK(wrong.error().message.find(names) != std::string::npos);
}

TEST_CASE("a standing is optional, bounded, and an object") {
  auto m = report();
  std::string text = wire::encode(m);
  const auto at = text.find("\"standing\":");
  REQUIRE(at != std::string::npos);
  const auto end = text.find('}', at) + 1;
  const std::string without = text.substr(0, at) + "\"unknown\":1" + text.substr(end);
  REQUIRE(wire::parse_progress(without));  // of an older build
  CHECK(wire::parse_progress(without)->standing.epoch == 0);
  const auto wrong = wire::parse_progress(text.substr(0, at) + "\"standing\":7" + text.substr(end));
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message.find("standing must be an object") != std::string::npos);
  m.standing.bases.assign(wire::kMaxBases, GlobalStep(1));
  CHECK(wire::parse_progress(wire::encode(m)));
  m.standing.bases.emplace_back(1);
  CHECK(wire::parse_progress(wire::encode(m)).error().message.find("bases: more than 4096") !=
        std::string::npos);
}

TEST_CASE("what a reply says of lineage and rebuild survives, and is checked") {
  ProgressReply m;
  m.rebuild = {0, 3};
  m.lineage = 42;
  m.lease_mark = 99;
  const std::string good = wire::encode(m);
  const auto back = wire::parse_progress_reply(good);
  REQUIRE(back);
  CHECK(back->rebuild == m.rebuild);
  CHECK(back->lineage == 42);
  CHECK(back->lease_mark == 99);
  const auto [from, to, names] = GENERATE(table<std::string, std::string, std::string>({
      {"[0,3]", "[0,-1]", "rebuild must hold fragments"},
      {"[0,3]", "[4096]", "rebuild must hold fragments"},
      {"[0,3]", "[18446744073709551615]", "rebuild must hold fragments"},
      {"[0,3]", "[0.5]", "rebuild must hold fragments"},
      {"[0,3]", "3", "rebuild must be a list"},
      {"\"lineage\":42", "\"lineage\":-42", "lineage: given -42"},
      {"\"leaseMark\":99", "\"leaseMark\":true", "leaseMark must be an integer"},
  }));
  std::string text = good;
  REQUIRE(text.find(from) != std::string::npos);
  text.replace(text.find(from), from.size(), to);
  const auto wrong = wire::parse_progress_reply(text);
  CAPTURE(to);
  REQUIRE_FALSE(wrong);
  INFO(wrong.error().message);
  CHECK(wrong.error().message.find(names) != std::string::npos);
}

TEST_CASE("what a peer may get wrong is named and never ends the process") {
  const auto good = wire::encode(report());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  const auto message = [](const std::string& text) {
    const auto parsed = wire::parse_progress(text);
    return parsed ? std::string("accepted") : parsed.error().message;
  };
  CHECK(message(with("us-east-0", "../../etc")).find("unit") != std::string::npos);
  CHECK(message(with("us-east-0", "")).find("unit") != std::string::npos);
  CHECK(message(with("\"localStep\":1234", "\"localStep\":-1")).find("localStep") !=
        std::string::npos);
  CHECK(message(with("\"localStep\":1234", "\"localStep\":1.5")).find("localStep") !=
        std::string::npos);
  CHECK(message(with("\"tokens\":5000000000", "\"tokens\":18446744073709551615")).find("tokens") !=
        std::string::npos);
  CHECK(message(with("\"loss\":2.125", "\"loss\":1e999")) != "accepted");
  CHECK(message(with("\"stepping\"", "\"dancing\"")).find("phase") != std::string::npos);
  CHECK(message(with("[12,256]", "[12,257]")).find("consumed") != std::string::npos);
  CHECK(message(with("[12,256]", "[-12,256]")).find("consumed") != std::string::npos);
  CHECK(message(std::string(200'000, '[')).find("larger") == std::string::npos);
  CHECK(message("{\"a\":" + std::string(30'000, '[')) == "message: nested deeper than 16");
  CHECK(message("[]") == "message: must be a JSON object");
  CHECK(message("{") == "message: not valid JSON");
  CHECK(wire::parse_progress(std::string(wire::kMaxMessageBytes + 1, ' ')).error().kind ==
        ErrorKind::kTooLarge);
}
