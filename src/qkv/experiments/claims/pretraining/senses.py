"""Sentences that use one word in two senses, written for this comparison."""

SENSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bank": (
        ("She opened a savings account at the bank.", "The bank raised its interest rates again.",
         "A loan from the bank paid for the house.", "He works as a cashier in a bank downtown."),
        ("We sat on the bank and watched the river.", "Willows grow along the muddy bank of the stream.",
         "The boat drifted towards the left bank.", "An otter climbed up the bank out of the water."),
    ),
    "spring": (
        ("The garden is full of flowers in spring.", "Every spring the birds return from the south.",
         "It was a warm spring after a long winter.", "They plan to marry next spring, in April or May."),
        ("The spring inside the mattress is broken.", "A metal spring pushes the button back up.",
         "He stretched the spring until the steel bent.", "Replace the spring and the screw of the clock."),
    ),
    "light": (
        ("The light of the lamp was too bright to read.", "Turn off the light before you leave the room.",
         "Plants need light and water to grow.", "A beam of light came through the window."),
        ("The suitcase is light enough to carry.", "Feathers are light, stones are heavy.",
         "He bought a light bicycle that weighs eight kilograms.", "This laptop is thin and light."),
    ),
    "bat": (
        ("The bat hung upside down in the cave.", "A bat hunts insects at night by echo.",
         "The wings of a bat are made of thin skin.", "We saw a bat fly out of the old barn at dusk."),
        ("He hit the ball with a wooden bat.", "The player broke his bat in the last inning.",
         "She swung the bat and missed the pitch.", "Hold the bat with both hands, then hit the ball."),
    ),
    "match": (
        ("Our team won the match by two goals.", "The tennis match lasted for three hours.",
         "Thousands of fans watched the match in the stadium.", "The referee ended the match after the foul."),
        ("She lit the candle with a match.", "He struck a match to start the fire.",
         "The last match in the box was wet and did not burn.", "A burning match fell onto the dry grass."),
    ),
    "seal": (
        ("The seal slept on the ice beside its pup.", "A seal can dive for half an hour to catch fish.",
         "We saw a grey seal swim near the beach.", "The polar bear was hunting a seal."),
        ("The letter was closed with a wax seal.", "The seal of the jar keeps the air out.",
         "Do not buy the bottle if its seal is broken.", "The document has the official seal of the king."),
    ),
}  # fmt: skip
