"""Which connections come in, and which go for them."""

from __future__ import annotations

import random
from collections import Counter

from agents.listeners.admission import (
    DESCRIPTORS_RESERVED,
    Admission,
    Cause,
    Limits,
    Verdict,
    connections_that_fit,
)

COMES_IN: Verdict[int] = Verdict()


def admission(*, most: int = 10, per_ip: int = 0, unproved: int = 3, within_ms: float = 1_000) -> Admission[int]:
    return Admission(Limits(connections_max=most, per_ip_max=per_ip, unproved_max=unproved, prove_within_ms=within_ms))


def test_the_oldest_that_has_not_proved_itself_goes_first_and_so_on_in_order() -> None:
    books = admission(unproved=3)
    assert [books.arrived(each, "h", each) for each in range(3)] == [COMES_IN] * 3
    books.proved(1)
    assert books.arrived(3, "h", 3) == COMES_IN, "the proved one made room"
    evicted = [books.arrived(each, "h", each) for each in (4, 5, 6, 7)]
    assert [each.evicted for each in evicted] == [0, 2, 3, 4]
    assert {each.evicted_for for each in evicted} == {Cause.PREAUTH_CONNECTIONS_MAX}
    assert (books.open, books.unproved) == (4, 3)


def test_a_flood_puts_out_its_own_and_nobody_else() -> None:
    books = admission(unproved=4, most=100)
    books.arrived(1, "modest", 0)
    for each in range(10, 50):
        verdict = books.arrived(each, "greedy", 0)
        assert verdict.evicted == (each - 3 if each >= 13 else None)
    # addresses of one IPv6 network count as one
    for each in range(50, 60):
        books.arrived(each, f"2001:db8::{each}", 0)
    assert books._unproved_in == {"modest": 1, "greedy": 1, "2001:db8::": 2}


def test_clients_behind_one_address_come_in_while_silent_ones_of_many_addresses_fill_all_places() -> None:
    for greedy, of_each in ((100, 2), (200, 1), (4, 50)):
        # given silent connections
        books = admission(unproved=200, most=1_000, within_ms=10_000)
        for each in range(greedy * of_each):
            books.arrived(each, f"2001:db8:0:{each % greedy:x}::1", each * 45)
        # when clients that share an address come, before any of them has proved itself
        evicted = [books.arrived(each, "192.0.2.1", 9_000 + each).evicted for each in range(1_000, 1_020)]
        # then the silent ones make room, the oldest first
        assert evicted == list(range(20)), f"{greedy} silent addresses"


def test_a_full_agent_gives_the_place_of_a_silent_one_to_a_newcomer_and_else_refuses() -> None:
    books = admission(most=2, unproved=10)
    books.arrived(1, "h", 0)
    books.proved(1)
    books.arrived(2, "h", 0)
    assert books.arrived(3, "h", 0) == Verdict(evicted=2, evicted_for=Cause.CONNECTIONS_MAX)
    books.proved(3)
    assert books.arrived(4, "h", 0) == Verdict(refused=Cause.CONNECTIONS_MAX)
    books.gone(4)  # a refused one closes too, and was never in the books
    books.gone(2)  # and an evicted one
    assert books.open == 2
    books.gone(1)
    assert books.arrived(5, "h", 0) == COMES_IN


def test_an_address_has_its_share_and_no_more_however_many_places_are_free() -> None:
    books = admission(per_ip=2, unproved=10)
    for each in (1, 2):
        assert books.arrived(each, "greedy", 0) == COMES_IN
    books.proved(1)
    assert books.arrived(3, "greedy", 0) == Verdict(refused=Cause.PER_IP)
    assert books.arrived(4, "modest", 0) == COMES_IN
    books.gone(1)
    assert books.arrived(5, "greedy", 0) == COMES_IN


def test_who_proves_nothing_in_time_is_overdue_and_who_had_to_wait_for_us_has_more_time() -> None:
    books = admission(within_ms=100)
    for each in (1, 2, 3):
        books.arrived(each, "h", each)
    books.proved(2)
    assert books.overdue(100) == []
    assert books.overdue(101) == [1]
    assert books.overdue(103) == [1, 3]
    books.held_up(1, 103)
    books.held_up(2, 103)
    assert books.overdue(202) == [3], "one that has proved itself is never overdue"
    books.gone(3)
    assert books.overdue(203) == [1]


def test_who_makes_us_wait_again_and_again_keeps_its_place_for_three_leases_and_no_longer() -> None:
    books = admission(within_ms=100)
    books.arrived(1, "h", 0)
    assert [books.held_up(1, now_ms) for now_ms in (100, 200, 299)] == [True] * 3
    assert books.overdue(398) == []
    assert books.overdue(399) == [1]
    assert not books.held_up(1, 399)
    assert not books.held_up(2, 0), "it never came"


def test_who_is_held_up_goes_for_a_newcomer_as_early_as_before() -> None:
    books = admission(unproved=3)
    for each in (1, 2, 3):
        books.arrived(each, "h", each)
    books.held_up(1, 500)
    assert books.arrived(4, "h", 501).evicted == 1


def test_whatever_comes_and_goes_the_bounds_hold_and_nothing_is_left_at_the_end() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(50):
        most, per_ip, unproved = chance.randint(1, 8), chance.randint(0, 4), chance.randint(1, 5)
        books = admission(most=most, per_ip=per_ip, unproved=unproved)
        here: dict[int, str] = {}
        proved: set[int] = set()
        for number in range(200):
            act = chance.random()
            if act < 0.5:
                host = chance.choice("abc")
                silent = sorted(set(here) - proved)
                of_host = Counter(here[each] for each in silent)
                verdict = books.arrived(number, host, number)
                if verdict.evicted is not None:
                    of_host[host] += 1 if host in of_host else 0
                    of_most = [each for each in silent if of_host[here[each]] == max(of_host.values())]
                    assert verdict.evicted == of_most[0], "the oldest unproved of who has most"
                    del here[verdict.evicted]
                if verdict.refused is None:
                    here[number] = host
                elif verdict.refused is Cause.CONNECTIONS_MAX:
                    assert len(here) == most and proved == set(here)
                else:
                    assert verdict.refused is Cause.PER_IP and list(here.values()).count(host) >= per_ip > 0
            elif here and act < 0.75:
                proved.add(which := chance.choice(list(here)))
                books.proved(which)
            elif here:
                books.gone(which := chance.choice(list(here)))
                del here[which]
                proved.discard(which)
            assert (books.open, books.unproved) == (len(here), len(here) - len(proved))
            assert books.open <= most and books.unproved <= unproved
        for each in here:
            books.gone(each)
        assert not books._hosts and not books._of_host
        assert not books._unproved and not books._where and not books._unproved_in


def test_descriptors_are_kept_back_for_what_is_not_a_client() -> None:
    assert connections_that_fit(2_000, descriptors_max=65_536, open_now=20) == 2_000
    assert connections_that_fit(2_000, descriptors_max=1_024, open_now=24) == 1_000 - DESCRIPTORS_RESERVED
    assert connections_that_fit(2_000, descriptors_max=100, open_now=24) < 1
