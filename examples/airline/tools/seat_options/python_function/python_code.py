"""Free seats on every flight of a booking, best first."""


def comfort(seat: str) -> tuple:
    row, letter = int(seat[:-1]), seat[-1]
    return (letter not in "ACDF", row)  # window and aisle first, then towards the front


def seat_options(booking_reference: str, cabin: str = "economy", most: int = 3) -> dict:
    found = tools.lookup_booking({"booking_reference": booking_reference, "seats": True})
    try:
        found.raise_for_status()
    except StatusError as problem:
        print(f"lookup_booking failed: {problem.reason}")
        return {"available": False, "reason": "the reservation system does not answer"}

    segments = found.json()["result"]["segments"]
    options = {segment["flight"]: sorted(segment["free"].get(cabin, []), key=comfort)[:most] for segment in segments}
    cache = get_variable("seat_cache") or {}
    cache[f"{booking_reference}/{cabin}"] = options
    set_variable("seat_cache", cache)
    return {"available": any(options.values()), "seats": options}
