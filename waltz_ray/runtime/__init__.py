"""What runs machines: the queue of their events, the story of their steps, who measures how long they take."""
