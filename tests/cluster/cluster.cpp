#include "tests/cluster/cluster.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "engine/base/usable_cores.h"
#include "launcher/hosts/local_host.h"

namespace dstrain::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kLauncher = -1;  // its index; those of hosts start at 0
constexpr const char* kSshd = "/usr/sbin/sshd";
constexpr const char* kSshdConfig = "/mnt/etc/sshd_config";
constexpr const char* kHostKey = "/mnt/etc/ssh_host_ed25519_key";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();  // of a process that is gone: nothing, where an iterator would throw
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

void mount_memory(const char* folder, const char* options) {
  if (mount("tmpfs", folder, "tmpfs", 0, options) != 0) {
    throw std::runtime_error(fmt::format("mount {}", folder));
  }
}

void put_in_place_of(const char* file, const std::string& text) {
  const std::string own = "/mnt" + std::string(file);
  write_file(own, text);
  if (mount(own.c_str(), file, nullptr, MS_BIND, nullptr) != 0) {
    throw std::runtime_error(fmt::format("mount over {}", file));
  }
}

/// /etc/passwd with root's home in /mnt and root's shell a POSIX one.
std::string passwd() {
  std::istringstream lines(read_file("/etc/passwd"));
  std::string text = fmt::format("root:x:0:0:root:{}:/bin/sh\n", Cluster::kHome);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("root:")) text += line + "\n";
  }
  return text;
}

void make_key(const std::string& path) {
  run_tool({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path});
}

/// The set-up that both a host and the launcher's machine need.
void furnish(const std::string& name, const std::string& hosts_file) {
  if (sethostname(name.data(), name.size()) != 0) throw std::runtime_error("sethostname");
  mount_memory("/mnt", "mode=755");
  mount_memory("/run", "mode=755");
  // OpenMP's runtime keeps a name with its process's number there, and hosts number alike.
  mount_memory("/dev/shm", "mode=1777");
  fs::create_directories("/mnt/etc");
  fs::create_directories(std::string(Cluster::kHome) + "/.ssh");
  put_in_place_of("/etc/passwd", passwd());
  put_in_place_of("/etc/hosts", hosts_file);
}

/// The host's only core, one after the other of this machine's: with all of them each host's
/// ranks would start threads for a machine that they share, and wait for each other most of the
/// time.
void take_one_core(int index) {
  const std::vector<int> cores = usable_cores().ids;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cores[static_cast<size_t>(index) % cores.size()], &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) throw std::runtime_error("sched_setaffinity");
}

void furnish_for_logins() {
  fs::create_directories("/run/sshd");
  put_in_place_of("/etc/shadow", "root:*:19000:0:99999:7:::\n");  // no password, yet not locked
  make_key(kHostKey);
  write_file(kSshdConfig, fmt::format("Port 22\n"
                                      "Port 2222\n"
                                      "HostKey {}\n"
                                      "PidFile /run/sshd.pid\n"
                                      "PermitRootLogin prohibit-password\n"
                                      "PasswordAuthentication no\n"
                                      "KbdInteractiveAuthentication no\n"
                                      "StrictModes no\n"
                                      "UsePAM no\n"
                                      "UseDNS no\n"
                                      "MaxStartups 1000\n"
                                      "LogLevel VERBOSE\n"
                                      "Subsystem sftp internal-sftp\n",
                                      kHostKey));
}

std::string ipv4_of(int index) {
  return index < 0 ? "10.77.0.1" : fmt::format("10.77.1.{}", index + 1);
}
std::string ipv6_of(int index) {
  return index < 0 ? "fd77::1" : fmt::format("fd77::1:{:x}", index + 1);
}
std::string mac_of(int index) {
  return fmt::format("02:77:00:00:{:02x}:{:02x}", (index + 1) >> 8, (index + 1) & 0xff);
}

/// Neighbours are told, not asked for: the kernel has one table of those it has asked for, for all
/// networks together, and a thousand places in it. 32 hosts that all talk to each other are more.
void set_up_network(int index, int hosts) {
  std::string commands = fmt::format(
      "link set lo up\n"
      "link set eth0 address {}\n"
      "addr add {}/16 dev eth0\n"
      "addr add {}/64 dev eth0 nodad\n"
      "link set eth0 up\n",
      mac_of(index), ipv4_of(index), ipv6_of(index));
  for (int other = kLauncher; other < hosts; ++other) {
    if (other == index) continue;
    for (const std::string& address : {ipv4_of(other), ipv6_of(other)}) {
      commands += fmt::format("neigh replace {} lladdr {} nud permanent dev eth0\n", address,
                              mac_of(other));
    }
  }
  run_tool({"ip", "-batch", "-"}, commands);
}

/// Whether this network namespace has a listener on port 22; asked of the kernel's table, since a
/// connection would cost a session of sshd's.
bool sshd_listens() {
  constexpr std::string_view kPort22Listening = ":0016 00000000:0000 0A";
  return read_file("/proc/net/tcp").find(kPort22Listening) != std::string::npos;
}

void start_sshd_here() {
  run_tool({kSshd, "-f", kSshdConfig, "-E", "/mnt/sshd.log"});
  if (!becomes_true(sshd_listens, std::chrono::seconds{20})) {
    throw std::runtime_error("sshd does not listen: " + read_file("/mnt/sshd.log"));
  }
}

std::string hosts_file(int hosts) {
  std::string text = "127.0.0.1 localhost\n10.77.0.1 launcher\n";
  for (int i = 0; i < hosts; ++i)
    text += fmt::format("{} w{}\n{} w{}-v6\n", ipv4_of(i), i, ipv6_of(i), i);
  return text;
}

/// Kills them and waits until they are gone.
void end_all(const std::vector<HostProcess>& processes) {
  for (const HostProcess& process : processes)
    ::kill(process.pid, SIGKILL);
  for (const HostProcess& process : processes)
    becomes_true([&] { return !is_alive(process.pid); }, std::chrono::seconds{5});
}

}  // namespace

std::optional<std::string> why_no_cluster() {
  for (const char* const tool : {kSshd, "/usr/bin/ssh-keygen", "/usr/sbin/ip"}) {
    if (!fs::exists(tool)) return fmt::format("{} is missing; run scripts/install-deps", tool);
  }
  if (geteuid() != 0) return "a cluster of namespaces needs root";
  return why_no_namespaces();
}

ClusterHost::ClusterHost(std::string name, int index) : name_(std::move(name)), index_(index) {}

std::string ClusterHost::ipv4() const {
  return ipv4_of(index_);
}
std::string ClusterHost::ipv6() const {
  return ipv6_of(index_);
}
std::string ClusterHost::path(const std::string& on_host) const {
  return fmt::format("/proc/{}/root{}", holder_->pid(), on_host);
}
std::string ClusterHost::read(const std::string& on_host) const {
  return read_file(path(on_host));
}
void ClusterHost::write(const std::string& on_host, const std::string& text) const {
  write_file(path(on_host), text);
}
std::string ClusterHost::host_key() const {
  const std::string text = read(std::string(kHostKey) + ".pub");
  return text.substr(0, text.rfind(' '));  // without the comment
}

std::string ClusterHost::run(const std::string& shell_command) const {
  return run_tool({"nsenter", "--target", std::to_string(holder_->pid()), "--mount", "--uts",
                   "--ipc", "--net", "--pid", "--", "/bin/sh", "-c", shell_command});
}

std::vector<HostProcess> ClusterHost::all_processes() const {
  const fs::path own_space = fs::read_symlink(holder_->link("pid"));
  std::vector<HostProcess> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string id = entry.path().filename();
    if (id.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code gone;  // processes vanish while we look
    if (fs::read_symlink(entry.path() / "ns/pid", gone) != own_space || gone) continue;
    HostProcess process{.pid = std::stoi(id)};
    if (!is_alive(process.pid)) continue;
    std::ifstream status(entry.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("NSpid:")) {
        process.pid_on_host = std::stoi(line.substr(line.find_last_of(" \t") + 1));
      }
    }
    process.command = read_file(entry.path() / "cmdline");
    while (process.command.ends_with('\0'))
      process.command.pop_back();
    for (char& c : process.command) {
      if (c == '\0') c = ' ';
    }
    found.push_back(std::move(process));
  }
  return found;
}

std::vector<HostProcess> ClusterHost::processes() const {
  std::vector<HostProcess> found = all_processes();
  std::erase_if(found, [](const HostProcess& process) {
    return process.pid_on_host == 1 || process.command.find("[listener]") != std::string::npos;
  });
  return found;
}

std::vector<pid_t> ClusterHost::processes_named(const std::string& name) const {
  const fs::path own_network = fs::read_symlink(holder_->link("net"));
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string id = entry.path().filename();
    if (id.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code gone;  // processes vanish while we look
    if (fs::read_symlink(entry.path() / "ns/net", gone) != own_network || gone) continue;
    if (read_file(entry.path() / "comm") == name + "\n" && is_alive(std::stoi(id))) {
      found.push_back(std::stoi(id));
    }
  }
  return found;
}

void ClusterHost::kill_sshd() {
  std::vector<HostProcess> own = all_processes();
  std::erase_if(own, [](const auto& process) { return !process.command.starts_with("sshd:"); });
  end_all(own);
}

void ClusterHost::kill_everything() {
  std::vector<HostProcess> own = all_processes();
  std::erase_if(own, [](const auto& process) { return process.pid_on_host == 1; });
  end_all(own);
}

void ClusterHost::start_sshd() {
  run(fmt::format("{} -f {} -E /mnt/sshd.log", kSshd, kSshdConfig));
  if (!becomes_true(
          [&] {
            return run("cat /proc/net/tcp").find(":0016 00000000:0000 0A") != std::string::npos;
          },
          std::chrono::seconds{20})) {
    throw std::runtime_error("sshd does not listen again");
  }
}

void ClusterHost::change_host_key() {
  fs::remove(path(kHostKey));
  fs::remove(path(std::string(kHostKey) + ".pub"));
  make_key(path(kHostKey));
  kill_sshd();
  start_sshd();
}

void ClusterHost::mount_small_disk(const std::string& folder, std::int64_t bytes) {
  run(fmt::format("mkdir -p {0} && mount -t tmpfs -o size={1} none {0}", folder, bytes));
}

Cluster::Cluster(int hosts)
    : switch_(
          Isolation::kNetwork, [] {}, [] {}) {
  const std::string names = hosts_file(hosts);
  launcher_ = std::make_unique<ClusterHost>("launcher", kLauncher);
  launcher_->holder_ = std::make_unique<NamespaceHolder>(
      Isolation::kMachine,
      [&] {
        furnish("launcher", names);
        make_key(std::string(kHome) + "/.ssh/id_ed25519");
      },
      [hosts] { set_up_network(kLauncher, hosts); });
  for (int i = 0; i < hosts; ++i) {
    auto host = std::make_unique<ClusterHost>(fmt::format("w{}", i), i);
    host->holder_ = std::make_unique<NamespaceHolder>(
        Isolation::kMachineAndProcesses,
        [&names, i, name = host->name_] {
          take_one_core(i);
          furnish(name, names);
          furnish_for_logins();
        },
        [i, hosts] {
          set_up_network(i, hosts);
          start_sshd_here();
        });
    hosts_.push_back(std::move(host));
  }

  switch_.await_namespaces();
  launcher_->holder_->await_namespaces();
  std::string cables = "link add br0 type bridge\nlink set br0 up\n";
  const auto plug_in = [&](const ClusterHost& host) {
    cables += fmt::format(
        "link add {0} type veth peer name eth0 netns {1}\n"
        "link set {0} master br0 up\n",
        host.name_, host.holder_->pid());
  };
  plug_in(*launcher_);
  for (const auto& host : hosts_) {
    host->holder_->await_namespaces();
    plug_in(*host);
  }
  in_switch(cables);

  launcher_->holder_->go();
  for (const auto& host : hosts_)
    host->holder_->go();
  launcher_->holder_->await_started();
  const std::string key = launcher_->read(std::string(kHome) + "/.ssh/id_ed25519.pub");
  std::string known;
  for (const auto& host : hosts_) {
    host->holder_->await_started();
    host->write(std::string(kHome) + "/.ssh/authorized_keys", key);
    for (const std::string& name : {host->name_, host->name_ + "-v6", host->ipv4(), host->ipv6()}) {
      known += fmt::format("{0},[{0}]:2222 {1}\n", name, host->host_key());
    }
  }
  launcher_->write(std::string(kHome) + "/.ssh/known_hosts", known);
}

void Cluster::in_switch(const std::string& commands) const {
  const InNetworkOf network(switch_);
  run_tool({"ip", "-batch", "-"}, commands);
}

void Cluster::unplug(const ClusterHost& host) {
  in_switch(fmt::format("link set {} down\n", host.name()));
}
void Cluster::drop_packets(const ClusterHost& host) {
  in_switch(fmt::format("link set {} nomaster\n", host.name()));
}
void Cluster::reconnect(const ClusterHost& host) {
  in_switch(fmt::format("link set {} master br0 up\n", host.name()));
}

std::unique_ptr<Program> Cluster::launch(std::vector<std::string> argv,
                                         Program::Environment environment) const {
  environment.insert(environment.begin(), {"HOME", kHome});
  return std::make_unique<Program>(std::move(argv), environment, [this] {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const fs::path folder = fs::current_path();
    launcher_->holder().enter();
    fs::current_path(folder);
  });
}

}  // namespace dstrain::testing
