"""Calls a tool in a loop on several connections, and prints how long each call took.

    python3 planted_client.py CONNECTIONS SECONDS MESSAGE PORT|PROGRAM [ARGUMENT...]

The message is a line of JSON with the id 1, which is replaced. Each connection sends the next
message when the one before is answered. It speaks lines over TCP, or starts a program for each
connection. The output is a line for each call: its microseconds. For suites of the load generator,
with which it shares no code.
"""

import json
import socket
import subprocess
import sys
import threading
import time

connections, seconds, message, *target = sys.argv[1:]
message = json.loads(message)


def opened():
    if target[0].isdigit():
        files = socket.create_connection(("127.0.0.1", int(target[0])))
        files.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = files.makefile("rwb")
        return stream, stream
    program = subprocess.Popen(target, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return program.stdin, program.stdout


def asked(output, answers, number):
    begin = time.monotonic_ns()
    output.write(json.dumps({**message, "id": number}).encode() + b"\n")
    output.flush()
    answer = json.loads(answers.readline())
    took = time.monotonic_ns() - begin
    assert answer["id"] == number and "result" in answer, answer
    return took // 1000


def called(times, ready):
    output, answers = opened()
    output.write(b'{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{}}\n')
    output.flush()
    answers.readline()
    ready.wait()
    until = time.monotonic() + float(seconds)
    number = 0
    while time.monotonic() < until:
        number += 1
        times.append(asked(output, answers, number))


times = []
ready = threading.Barrier(int(connections))
threads = [threading.Thread(target=called, args=(times, ready)) for _ in range(int(connections))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("\n".join(str(took) for took in times))
