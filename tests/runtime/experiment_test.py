# SPDX-License-Identifier: MIT
"""speedbump experiment on services whose answer is known (tests/programs/known_service)."""

import contextlib
import http.server
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

from browser import Cells, browse
from harness import (
    LIBRARY, Run, Skip, _leftovers, alone, campaign, children, expect_restored, main, need, scratch,
    targets_file, wait_for,
)
from known_experiments import (
    PROGRESS, UNTIL_KNOWN, Experiment, Measuring, expect_k, start, start_python,
)


@alone
def test_serial_functions_have_criticality_1() -> None:
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n+exe:work_b\n", "--doses=50us,100us,200us",
                      *UNTIL_KNOWN)
    assert done.status == 0, done
    for name in ("+exe:work_a", "+exe:work_b"):
        expect_k(done, name, 0.85, 1.15)
        assert done.target(name)["verdict"] == "matters", done
    sham = done.document["results"]["progress"][0]["sham"]
    assert abs(sham["value"]) < 0.2, sham
    report = Run("report", str(done.json_path), "--json")
    assert json.loads(report.out)["results"] == done.document["results"]

    expect_restored(service.pid)


@alone
def test_slack_hides_until_it_is_used_up() -> None:
    service = start("slack")
    done = Experiment(service.pid, "+exe:work_short\n",
                      "--doses=200us,400us,600us,800us,1ms", "--max-slowdown=200%",
                      "--blocks=10")
    assert done.status == 0, done
    found = done.target("+exe:work_short")
    assert found["shape"] == "hinge", done
    assert 300_000 < found["slack_ns"]["value"] < 500_000, found
    assert found["verdict"] == "hidden" and found["gain_ns_per_us"] is None, found
    expect_k(done, "+exe:work_short", 0.7, 1.3)


@campaign
def test_python_and_native_functions_of_one_service() -> None:
    service = start_python("mixed")
    names = ("__main__:work_a", "+libslowlib.so:lib_work")
    done = Experiment(service.pid, "\n".join(names) + "\n", "--doses=50us,100us,200us",
                      *UNTIL_KNOWN, progress="python:__main__:unit_done")
    assert done.status == 0, done
    for name in names:
        expect_k(done, name, 0.85, 1.15)

    expect_restored(service.pid, LIBRARY)


@campaign
def test_what_nobody_waits_for_does_not_matter() -> None:
    service = start("apart")
    done = Experiment(service.pid, "+exe:work_on\n+exe:work_off\n",
                      "--doses=100us,200us", *UNTIL_KNOWN)
    assert done.status == 0, done
    expect_k(done, "+exe:work_on", 0.8, 1.2)
    expect_k(done, "+exe:work_off", -0.1, 0.1)
    assert done.target("+exe:work_off")["verdict"] != "matters", done


@alone
def test_delays_that_take_the_cpu_of_others_are_told() -> None:
    """Two processes that sleep more than they work, on one CPU instead of two."""
    service = start_python("pipeline")
    for one in (service.pid, *children(service.pid)):
        os.sched_setaffinity(one, {0})
    name = "+libc.so.6:write"
    done = Experiment(service.pid, name + "\n", "--doses=800us", "--blocks=6",
                      "--max-slowdown=900%", "--max-cpu=2", progress="python:__main__:unit_done")
    print("  waited per injected:", done.target(name)["waited_per_injected"])
    assert done.target(name)["waited_per_injected"] > 0.1, done
    assert any("waited" in one and name in one for one in done.document["warnings"]), done


def test_what_wants_a_cpu_all_the_time_may_be_the_bottleneck_and_is_told() -> None:
    service = start("serial")
    spinning = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    sleeping = subprocess.Popen(["sleep", "1000"])
    try:
        done = Experiment(service.pid, "+exe:work_a\n", "--time=2s")
    finally:
        spinning.kill()
        sleeping.kill()
    told = [one for one in done.document["warnings"] if "is the bottleneck" in one]
    # The three that want most are told, which may be others of this host.
    assert any(f"of process {spinning.pid} (sh)" in one for one in told) or len(told) == 3, done
    assert not any(f"of process {sleeping.pid} " in one for one in told), done
    assert not any(f"of process {service.pid} " in one for one in told), done


@campaign
def test_bottleneck_of_a_pipeline_moves() -> None:
    for slow, fast in (("second", "first"), ("first", "second")):
        service = start("pipeline", f"{slow}=600", f"{fast}=300")
        done = Experiment(service.pid, "+exe:work_first\n+exe:work_second\n",
                          "--doses=50us,100us,150us", *UNTIL_KNOWN)
        assert done.status == 0, done
        expect_k(done, f"+exe:work_{slow}", 0.8, 1.2)
        expect_k(done, f"+exe:work_{fast}", -0.15, 0.15)
        assert done.target(f"+exe:work_{fast}")["verdict"] != "matters", done

        service.kill()


@alone
def test_a_failed_control_makes_the_result_invalid() -> None:
    service = start("apart")
    done = Experiment(service.pid, "+exe:work_on\n", "--positive=+exe:work_off",
                      "--doses=100us", "--blocks=6")
    assert done.status == 1, done
    assert not done.document["results"]["valid"], done
    assert "INVALID: the positive control +exe:work_off" in done.out, done


@alone
def test_dose_above_the_guard_is_given_up() -> None:
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n", "--doses=40us,20ms", "--max-slowdown=100%",
                      "--blocks=4")
    assert done.document["targets"][0]["doses_ns"] == [40_000], done
    assert "given up" in done.err, done
    assert all(one["length_ns"] < 2e9 for block in done.document["blocks"]
               for one in block["slices"])
    expect_restored(service.pid)


@alone
def test_dose_above_the_guard_ends_while_it_settles() -> None:
    service = start("serial")
    slow, ended = 0, threading.Event()  # units that ended while few did

    def count() -> None:
        nonlocal slow
        last = None
        while not ended.wait(0.05):
            service.stdin.write("\n")
            service.stdin.flush()
            units = int(service.stdout.readline())
            if last is not None and units - last <= 5:  # of some 100 otherwise
                slow += units - last
            last = units

    thread = threading.Thread(target=count)
    thread.start()
    try:
        done = Experiment(service.pid, "+exe:work_a\n", "--doses=20ms", "--max-slowdown=100%",
                          "--settle=2s", "--blocks=2", "--no-off")
    finally:
        ended.set()
        thread.join()
    assert "given up" in done.err and done.document["targets"][0]["doses_ns"] == [], done
    # To settle would take 100 of them, each of two times; the guard's looks are 5 apart. A busy machine
    # counts as slow what is not.
    assert slow < 100, (slow, done)
    expect_restored(service.pid)


def test_a_system_call_that_is_counted_at_all_of_them_is_told_of_once() -> None:
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n", "--doses=100us", "--blocks=2",
                      "--progress=syscall:getppid", without="fentry")
    assert done.err.count("every system call of this host") == 1, done
    told = [one for one in done.document["warnings"] if one.startswith("syscall:getppid")]
    assert len(told) == 1 and "switched off for a test" in told[0], done


@campaign
def test_system_calls_commands_and_logs_are_progress_too() -> None:
    program = scratch() / "logger.py"
    program.write_text("""
import time, sys
def work():
    end = time.perf_counter_ns() + 500_000
    while time.perf_counter_ns() < end: pass
for n in range(10**9):
    work()
    sys.stderr.write(f"unit {n}\\n")
""")
    log = scratch() / "log"
    service = subprocess.Popen([need("python3"), str(program)], stderr=log.open("w"))
    _leftovers.append(service.kill)
    wait_for(lambda: log.stat().st_size > 0, 10, "the first line")
    for progress in ("syscall:write", f"file:{log}:unit ([0-9]+)", f"file:{log}:^unit",
                     f"command:wc -l < {log}"):
        done = Experiment(service.pid, "+libc.so.6:write\n+libc.so.6:__write\n", "--doses=200us",
                          "--blocks=2", progress=progress)
        assert done.status in (0, 1) and done.document["complete"], done
        period = done.document["results"]["progress"][0]["period_ns"]
        assert 400_000 < period < 5_000_000, done


def test_lines_of_any_length_and_pattern_are_searched_in_linear_time() -> None:
    service = start("serial")
    log = scratch() / "log"
    log.write_text("")

    def write_on() -> None:
        with contextlib.suppress(OSError), log.open("a") as file:
            for unit in range(10**9):
                # A backtracking search of the long ones would take for ever, or all of the stack.
                file.write("ab" * 100_000 + "\n" + f"unit {unit}\n")
                file.flush()
                if service.poll() is not None:
                    return
                time.sleep(0.01)

    threading.Thread(target=write_on, daemon=True).start()
    done = Experiment(service.pid, "+exe:work_a\n", "--doses=100us", "--blocks=2",
                      progress=f"file:{log}:(?:(?:a|b)*)*c|unit ([0-9]+)")
    assert done.status in (0, 1) and done.document["complete"], done
    done = Experiment(service.pid, "+exe:work_a\n", progress=f"file:{log}:unit ([0-9]+")
    assert done.status == 2 and "is not a regular expression" in done.err, done
    service.kill()
    service.wait()


def test_command_that_hangs_goes_with_all_that_it_started() -> None:
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n", progress="command:sleep 987654 | cat")
    assert done.status == 1 and "takes too long" in done.err, done
    # All were killed before it ended; when they are gone is for the kernel to say.
    wait_for(lambda: not [path for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
                          if _command_of(path) == b"sleep\x00987654\x00"], 10, "the end of all of them")


def _command_of(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended


@alone
def test_marks_latency_and_metrics_pages_are_progress() -> None:
    service = start("serial")

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            service.stdin.write("\n")
            service.stdin.flush()
            text = f"# TYPE units counter\nunits_total {service.stdout.readline()}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        for progress in ("usdt:exe:known:unit", "latency:exe:work_b",
                         f"http:{url}:units_total ([0-9]+)"):
            done = Experiment(service.pid, "+exe:work_a\n", "--doses=100us,200us", "--blocks=3",
                              "--max-slowdown=400%", progress=progress)
            assert done.document["complete"], done
            period = done.document["results"]["progress"][0]["period_ns"]
            assert 380_000 < period < 2_000_000, done
            calls = done.target("+exe:work_a")["calls_per_unit"]
            assert 0.9 < calls < 1.1, (progress, calls, done)
            if progress.startswith("latency"):
                medians = [one["latency"][0]["p50_ns"] for block in done.document["blocks"]
                           for one in block["slices"] if one["latency"][0]]
                assert medians and all(190_000 < one < 300_000 for one in medians), done
        server.shutdown()
    done = Experiment(service.pid, "+exe:work_a\n", progress="usdt:exe:known:nonesuch")
    assert done.status == 1 and "is in none of the processes" in done.err, done
    assert "libbpf" not in done.err, done


def test_mark_that_the_kernel_would_turn_into_a_call_is_refused() -> None:
    """A nop of 5 bytes: on Linux 6.18 a forked child that came there would end."""
    if os.uname().machine != "x86_64":
        raise Skip("is for x86-64")
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n", "--doses=100us", "--blocks=3",
                      progress="usdt:exe:known:unit_nop5")
    if done.status == 0 and not os.uname().release.startswith("6.18."):
        return  # a kernel that rewrites none
    assert done.status != 0 and "the mark unit_nop5" in done.err, done
    assert "can't be probed" in done.err and "forked children" in done.err, done


@campaign
def test_bisect_finds_the_functions_that_take_part() -> None:
    service = start("apart")
    done = Experiment(service.pid, "+exe:work_*\n", "--bisect", "--time=60s", "--max-cpu=2",
                      "--max-slowdown=200%", timeout=150)
    found = {one["name"].rsplit(":", 1)[1]: one
             for one in done.document["results"]["progress"][0]["targets"]}
    assert found["work_on"]["verdict"] == "matters", done
    assert found.get("work_off", {}).get("verdict") != "matters", done


def test_service_that_stops_ends_it() -> None:
    service = start("serial")
    running = Measuring(service.pid, "+exe:work_a\n", "--doses=50us", "--time=300s", "--json")
    running.wait_for(3)
    service.send_signal(signal.SIGSTOP)
    status, out, err = running.end()
    document = json.loads(out)
    assert status == 1 and "ticks no more" in document["stopped"], (document["stopped"], err)
    assert document["blocks"] and not document["complete"], err
    service.send_signal(signal.SIGCONT)
    expect_restored(service.pid)


def test_progress_that_never_ticks_is_told() -> None:
    service = start("serial")
    done = Experiment(service.pid, "+exe:work_a\n", progress="native:exe:work_off")
    assert done.status == 1 and "did not tick within 5 s" in done.err, done
    done = Experiment(service.pid, "+exe:work_a\n", progress="native:exe:no_such_function")
    assert done.status == 1 and "is in none of the processes" in done.err, done
    expect_restored(service.pid)


def test_progress_that_goes_backwards_ends_it() -> None:
    service = start("serial")
    folder = scratch()
    count = folder / "count"
    count.write_text("0")
    command = f"command:n=$(($(cat {count}) + 1000)); echo $n | tee {count}"
    goes_on = threading.Event()

    def turn_back() -> None:
        while not goes_on.wait(1.0):
            count.write_text("0")

    thread = threading.Thread(target=turn_back)
    thread.start()
    try:
        done = Experiment(service.pid, "+exe:work_a\n", "--doses=50us", "--time=30s",
                          progress=command)
    finally:
        goes_on.set()
        thread.join()
    assert done.status == 1 and "backwards" in done.err, done
    expect_restored(service.pid)


def test_service_that_ends_gives_what_was_measured() -> None:
    service = start("serial")
    running = Measuring(service.pid, "+exe:work_a\n", "--doses=50us", "--time=300s", "--json")
    running.wait_for(3)
    service.kill()
    service.wait()
    status, out, err = running.end()
    document = json.loads(out)
    assert status == 1 and "the processes ended" in document["stopped"], (document["stopped"], err)
    assert document["blocks"] and not document["complete"], err


def test_interrupt_and_kill_leave_the_service_as_it_was() -> None:
    service = start("serial")
    for how in (signal.SIGINT, signal.SIGKILL):
        running = Measuring(service.pid, "+exe:work_a\n", "--doses=100us")
        running.wait_for(1)
        _, out, err = running.end(how)
        if how == signal.SIGINT:
            assert "ended by: interrupted" in out, out + err
        expect_restored(service.pid)


def test_bad_files_are_refused_before_anything_is_touched() -> None:
    service = start("serial")
    done = Run("experiment", "--pid", str(service.pid), "--progress", PROGRESS,
               "--output=/nowhere/result.json", targets_file("+exe:work_a\n"))
    assert done.status == 1 and "/nowhere/result.json" in done.err, done
    good = Experiment(service.pid, "+exe:work_a\n", "--doses=50us", "--blocks=2")
    cut = scratch() / "cut.json"
    text = good.json_path.read_text()
    for length in (0, 10, len(text) // 2, len(text) - 20):
        cut.write_text(text[:length])
        report = Run("report", str(cut))
        assert report.status == 1 and "not an experiment" in report.err, report


@alone
def test_two_experiments_are_compared_and_merged() -> None:
    service = start("serial")
    one, two = (
        Experiment(service.pid, "+exe:work_a\n", "--doses=50us,100us", "--blocks=4",
                   "--max-slowdown=400%")
        for _ in range(2)
    )
    compared = Run("compare", str(one.json_path), str(two.json_path), "--json")
    assert compared.status == 0, compared
    target = json.loads(compared.out)["targets"][0]
    # Every twentieth pair of good runs "differs": that is what it says. This is one in 10,000.
    assert target["name"] == "+exe:work_a" and target["p_corrected"] > 1e-4, target
    assert target["differs"] == (target["p_corrected"] < 0.05), target
    same = Run("compare", str(one.json_path), str(one.json_path), "--json")
    (target,) = json.loads(same.out)["targets"]
    assert not target["differs"] and target["difference"]["value"] == 0, same
    merged = Run("report", str(one.json_path), str(two.json_path), "--json")
    assert len(json.loads(merged.out)["blocks"]) == 8, merged


def test_html_report_draws_its_plots_and_asks_for_nothing() -> None:
    chromium = need("chromium")
    service = start("serial")
    # A name that would end the script element if it were written as it is.
    done = Experiment(service.pid, '+exe:work_a\n+exe:work_b\n+exe:"</script><b>"\n',
                      "--doses=100us", "--blocks=3", "--max-slowdown=400%")
    dom, asked = browse(chromium, f"file://{done.html_path}")
    assert 'data-drawn="yes"' in dom, dom[-2000:]
    assert asked == [], asked
    page = Cells(dom)
    targets = [one for one in done.document["results"]["progress"][0]["targets"]
               if one["blocks"] > 0]
    # The ranking, how they came to be known, and a plot of each target.
    assert len(targets) == 2 and page.canvases == 2 + len(targets), page.canvases
    assert '+exe:"</script><b>"' in page.cells, page.cells
    for target in targets:
        assert f"{target['criticality']['value']:.3f}" in page.cells, page.cells
        low, high = target["criticality"]["low"], target["criticality"]["high"]
        assert f"{low:.3f} to {high:.3f}" in page.cells, page.cells
    # The proxy would have seen a request.
    beacon = scratch() / "beacon.html"
    beacon.write_text('<img src="http://example.org/x.png">')
    assert browse(chromium, f"file://{beacon}")[1], "the proxy sees nothing at all"


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(globals())
