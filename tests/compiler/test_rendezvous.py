"""Processes that meet before they train together."""

import socket
import threading

import pytest

from jaxagents.compiler.rendezvous import ProcessError, meet


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def meet_as(*processes, seconds=5.0):
    """Let threads meet as processes (number of processes, index); return what each raises."""
    address, results = f"127.0.0.1:{free_port()}", [None] * len(processes)

    def come(i, n_processes, process_id):
        try:
            meet(address, n_processes, process_id, seconds)
            results[i] = "met"
        except ProcessError as error:
            results[i] = str(error)

    threads = [threading.Thread(target=come, args=(i, *each)) for i, each in enumerate(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def test_all_go_on_once_all_have_come():
    assert meet_as((4, 3), (4, 0), (4, 2), (4, 1)) == ["met"] * 4
    assert meet_as((1, 0)) == ["met"]


def test_one_that_does_not_come_is_named_to_all():
    results = meet_as((3, 0), (3, 2), seconds=1.0)
    assert all("process 1 of 3 has not come within 1 s" in each for each in results)


def test_a_first_process_that_is_not_there_is_an_error():
    (result,) = meet_as((2, 1), seconds=0.5)
    assert "no process answers at 127.0.0.1" in result


def test_processes_that_expect_another_number_are_told():
    results = meet_as((2, 0), (3, 1))
    assert all("process 1 is one of 3, but process 0 is one of 2" in each for each in results)


def test_strangers_do_not_keep_the_others():
    port = free_port()
    first = threading.Thread(target=meet, args=(f"127.0.0.1:{port}", 2, 0, 10.0))
    first.start()
    strangers = []
    for said in (b"", b"5", b"hello"):
        while True:
            try:
                strangers.append(socket.create_connection(("127.0.0.1", port)))
                break
            except OSError:
                continue
        strangers[-1].sendall(said)
    meet(f"127.0.0.1:{port}", 2, 1, 10.0)
    first.join(10)
    assert not first.is_alive()
    for stranger in strangers:
        stranger.close()


def test_two_of_the_same_number_are_told():
    results = meet_as((3, 0), (3, 1), (3, 1))
    assert "two processes are number 1" in results[0]
    assert results.count("met") == 0


@pytest.mark.parametrize("address", ["nowhere", "host:", ":1", "host:port"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ProcessError, match="is no address"):
        meet(address, 2, 1, 1.0)
